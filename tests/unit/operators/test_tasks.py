"""Rewards of a batch of several tasks: grouped, judged at once, put back by index, and what becomes of one that fails."""

from __future__ import annotations

import threading

import pytest
import torch

from operators.mixture import mixture
from operators.records import Scores
from operators.reward import exact_match, integer_match, reasoning_gym_reward
from operators.tasks import by_task, tagged, untagged
from pipelines.grpo import grpo
from rlflow.errors import DataError, OperatorError, UsageError, WaitTimeout
from rlflow.language.config import from_config, to_config
from rlflow.measure import collected, settled

ENTRY = '{"question": "Spell this word backward: sun", "answer": "nus", "metadata": {"source_dataset": "spell_backward", "word": "sun"}}'


def ones(rows: int) -> torch.Tensor:
    return torch.ones(rows, 2, dtype=torch.bool)


def scores_of(values: list[float], mask: torch.Tensor) -> Scores:
    at_last = torch.zeros(mask.shape)
    at_last[:, -1] = torch.tensor(values)
    return Scores(token_level_scores=at_last, is_correct=torch.tensor([float(value >= 1) for value in values]))


def by_number(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    return scores_of([float(text) for text in texts], mask)


class InTurn:
    """Two rewards of which the first cannot be done before the second is."""

    def __init__(self) -> None:
        self.second_is_done, self.order = threading.Event(), list[str]()

    def first(self, texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
        assert self.second_is_done.wait(timeout=20)
        self.order.append("first")
        return by_number(texts, answers, mask)

    def second(self, texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
        found = by_number(texts, answers, mask)
        self.order.append("second")
        self.second_is_done.set()
        return found


def fails(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    raise OperatorError("its model is away")


def hangs(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    raise WaitTimeout("no answer in 5 s")


def answers_of(tasks: str) -> list[str]:
    return [tagged(task, "") for task in tasks]


def test_two_tasks_interleaved_that_end_out_of_order_are_put_back_by_index() -> None:
    turns = InTurn()
    reward = by_task({"a": turns.first, "b": turns.second})
    scores = reward([str(n) for n in range(8)], answers_of("abbabaab"), ones(8))
    assert turns.order == ["second", "first"]
    assert scores.token_level_scores.tolist() == [[0, n] for n in range(8)]
    assert scores.is_correct.tolist() == [0, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("failing", [fails, hangs])
def test_a_task_that_fails_costs_its_rows_only_and_is_named(failing: object, caplog: pytest.LogCaptureFixture) -> None:
    collected()
    reward = by_task({"good": by_number, "bad": failing})  # type: ignore[dict-item]
    scores = reward(["1", "2", "3", "4"], [tagged(t, "") for t in ("good", "bad", "bad", "good")], ones(4))
    assert scores.token_level_scores.tolist() == [[0, 1], [0, 0], [0, 0], [0, 4]]
    assert scores.is_correct.tolist() == [1, 0, 0, 1]
    assert settled(collected()) == {"failed/bad": 2.0, "task/good": 2.5, "task/bad": 0.0}
    assert "task bad failed, its 2 rows (1 ...) score 0" in caplog.text


def faulty(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    raise TypeError("unsupported operand")


def test_a_fault_in_the_code_of_a_reward_costs_its_rows_and_ends_the_run_when_it_stays(caplog: pytest.LogCaptureFixture) -> None:
    reward = by_task({"good": by_number, "faulty": faulty})
    asked = (["1", "2"], [tagged("good", ""), tagged("faulty", "")], ones(2))
    for _ in range(3):
        assert reward(*asked).token_level_scores.tolist() == [[0, 1], [0, 0]]
    assert "task faulty failed, its 1 rows (1 ...) score 0: it raised TypeError: unsupported operand" in caplog.text
    with pytest.raises(OperatorError, match="the reward of task faulty failed 4 times in a row, the last time it raised TypeError"):
        reward(*asked)


def test_when_all_tasks_fail_the_run_ends() -> None:
    reward = by_task({"one": fails, "two": hangs})
    with pytest.raises(OperatorError, match=r"the rewards of all tasks failed \(one, two\); the last one: no answer in 5 s"):
        reward(["1", "2"], [tagged("one", ""), tagged("two", "")], ones(2))


def test_calls_of_single_rows_end_it_together() -> None:
    reward = by_task({"sick": fails, "ill": fails})
    for _ in range(3):
        assert reward(["1"], [tagged("sick", "")], ones(1)).is_correct.tolist() == [0]
    with pytest.raises(OperatorError, match="all tasks failed"):
        reward(["1"], [tagged("ill", "")], ones(1))


def test_each_task_is_judged_by_its_own_reward() -> None:
    reward = by_task({"sums": integer_match, "words": exact_match, "reasoning_gym": reasoning_gym_reward})
    texts = ["it is 7", "it is 7", "nus", "it is 7"]
    scores = reward(texts, [tagged("sums", "7"), tagged("words", "7"), ENTRY, tagged("words", "it is 7")], ones(4))
    assert scores.is_correct.tolist() == [1, 0, 1, 1]


def test_a_tag_holds_any_text() -> None:
    assert untagged(tagged("sums", '{"x": "ü\n"}')) == ("sums", '{"x": "ü\n"}')


@pytest.mark.parametrize("answer", ["7", "no json", '{"answer": "7"}', '{"task": 1, "answer": "7"}'])
def test_a_row_that_says_no_task_is_named(answer: str) -> None:
    with pytest.raises(DataError, match=r"row 1: its answer .* says no task"):
        by_task({"sums": integer_match})(["7", "7"], [tagged("sums", "7"), answer], ones(2))


def test_a_row_of_a_task_without_a_reward_is_named() -> None:
    with pytest.raises(DataError, match="row 0 is of the task 'words', which no reward is given for; there are sums"):
        by_task({"sums": integer_match})(["7"], [tagged("words", "7")], ones(1))


def test_a_bad_score_is_told_with_the_rows_of_its_task() -> None:
    with pytest.raises(DataError, match=r"task b: 1 responses but .* \(its rows are 1 of the batch\)"):
        by_task({"a": by_number, "b": _mismatched})(["1", "2"], answers_of("ab"), ones(2))


def _mismatched(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    return integer_match(texts, answers, ones(3))


def test_no_task_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="by_task: no task"):
        by_task({})


def test_no_rows() -> None:
    assert by_task({"a": by_number})([], [], torch.zeros(0, 2, dtype=torch.bool)).is_correct.tolist() == []


def test_rewards_by_task_are_configuration_and_stand_in_a_pipeline() -> None:
    reward = by_task({"sums": integer_match, "words": mixture(correct=(exact_match, 1.0))})
    again = from_config(to_config(reward))
    assert again(["7", "a"], [tagged("sums", "7"), tagged("words", "a")], ones(2)).is_correct.tolist() == [1, 1]
    assert "judge_by_task" in [node.name for node in grpo(reward=reward).graph.nodes]
