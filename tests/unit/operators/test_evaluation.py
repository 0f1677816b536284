"""Held-out prompts: every answer once, by the estimators of the literature, or no score at all."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from operators.evaluation import Answer, Exam, HeldOut, Item, baselines_of, pass_at_k
from operators.records import Scores
from operators.reward import exact_match
from rlflow.errors import DataError, EngineError, OperatorError, WaitTimeout
from rlflow.measure import collected, note


def prompts_of(answers: list[str]) -> Any:
    return SimpleNamespace(answer=answers, template=["t"] * len(answers), uid=torch.arange(10, 10 + len(answers)))


def exam(answers: list[str], **how: Any) -> Exam:
    return Exam(prompts_of(answers), HeldOut(**how), with_episodes=False)


def by_row(texts: list[str]) -> Any:
    return lambda item: Answer(texts[item.row])


def test_the_reward_is_the_share_of_right_answers() -> None:
    numbers = exam(["a", "b", "c", "d"]).numbers(by_row(["a", "b", "x", ""]), None, exact_match)
    assert numbers == {"reward": 0.5, "prompts": 4.0, "best_constant": 0.25, "best_blind": 0.25}


def test_pass_at_k_is_the_mean_over_all_choices_of_k() -> None:
    for n, right in itertools.product((1, 4, 7), range(8)):
        for k in range(1, n + 1):
            if right <= n:
                choices = list(itertools.combinations(range(n), k))
                assert pass_at_k(n, right, k) == pytest.approx(sum(min(chosen) < right for chosen in choices) / len(choices))


def test_samples_are_averaged_and_any_right_one_passes() -> None:
    said = {(0, 0): "a", (0, 1): "x", (0, 2): "x", (0, 3): "x", (1, 0): "b", (1, 1): "b", (1, 2): "b", (1, 3): "b"}
    numbers = exam(["a", "b"], samples=4, temperature=1.0).numbers(lambda item: Answer(said[item.row, item.sample]), None, exact_match)
    assert numbers["reward"] == numbers["avg@4"] == 0.625  # 5 of 8
    assert (numbers["pass@1"], numbers["pass@2"], numbers["pass@4"]) == (0.625, 0.75, 1.0)  # of the first prompt 1/4, 1/2, 1
    assert numbers["prompts"] == 2.0


def test_every_item_is_answered_once_whatever_the_others_do() -> None:
    asked: Counter[Item] = Counter()
    lock = threading.Lock()

    def answer(item: Item) -> Answer:
        with lock:
            asked[item] += 1
        time.sleep(0.001 * (item.uid % 3))
        return Answer("yes")

    one = exam(["yes"] * 150, samples=2, temperature=0.5)
    assert one.numbers(answer, None, exact_match)["reward"] == 1.0
    assert asked == Counter({Item(row, 10 + row, sample): 1 for row in range(150) for sample in range(2)})


def test_what_could_not_be_answered_at_once_is_asked_alone_and_the_order_stays() -> None:
    asked: list[Item] = []

    def answer(item: Item) -> Answer:
        asked.append(item)
        return Answer("b")

    one = exam(["a", "b", "c"])
    numbers = one.numbers(answer, lambda: [Answer("a"), None, Answer("c")], exact_match)
    assert (numbers["reward"], asked) == (1.0, [Item(1, 11, 0)])


def test_a_request_for_all_that_fails_is_no_evaluation_that_fails() -> None:
    def at_once() -> list[Answer | None]:
        raise EngineError("one of them is too long")

    assert exam(["a", "a"]).numbers(by_row(["a", "x"]), at_once, exact_match)["reward"] == 0.5


def failing(times: int, error: Exception) -> Any:
    """Item 11 fails so often."""
    left = [times]

    def answer(item: Item) -> Answer:
        if item.uid == 11 and left[0]:
            left[0] -= 1
            raise error
        return Answer("a")

    return answer


def test_a_failing_item_is_tried_again() -> None:
    assert exam(["a", "a"], attempts=3).numbers(failing(2, OperatorError("the tool crashed")), None, exact_match)["reward"] == 1.0


@pytest.mark.parametrize("error", [OperatorError("the tool crashed"), WaitTimeout("the tool hangs"), EngineError("it aborts")], ids=str)
def test_an_item_that_fails_on_every_attempt_fails_the_evaluation_by_name(error: Exception) -> None:
    with pytest.raises((OperatorError, EngineError), match=f"held-out prompt 11 failed on 3 attempts, the last one: {error}"):
        exam(["a", "a"]).numbers(failing(3, error), None, exact_match)


def test_it_may_count_as_wrong_where_that_is_said_and_then_it_is_told() -> None:
    collected()
    numbers = exam(["a", "a"], failing="zero").numbers(failing(3, OperatorError("the tool crashed")), None, exact_match)
    assert (numbers["reward"], collected()) == (0.5, {"failed/environment": 1.0})


def test_an_engine_that_fails_is_never_a_wrong_answer() -> None:
    with pytest.raises(EngineError, match="held-out prompt 11 failed on 3 attempts"):
        exam(["a", "a"], failing="zero").numbers(failing(3, EngineError("it aborts")), None, exact_match)


def moody(times: int) -> Any:
    """A reward whose verifier fails so often on "b"."""
    left = [times]

    def reward(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
        if "b" in texts and left[0]:
            left[0] -= 1
            note("failed/timeout", 1.0)
        right = torch.tensor([float(t == a) for t, a in zip(texts, answers, strict=True)])
        return Scores(token_level_scores=right[:, None], is_correct=right)

    return reward


def test_a_verifier_that_fails_on_an_answer_is_asked_again_about_each_alone() -> None:
    assert exam(["a", "b"]).numbers(by_row(["a", "b"]), None, moody(2))["reward"] == 1.0


def test_a_verifier_that_always_fails_fails_the_evaluation_by_the_name_of_the_item() -> None:
    said = r"held-out prompt 11 failed on 3 attempts, the last one: its verifier failed \(timeout on 1 of 1\)"
    with pytest.raises(OperatorError, match=said):
        exam(["a", "b"]).numbers(by_row(["a", "b"]), None, moody(99))


@pytest.mark.parametrize("none", [{"samples": 0}, {"attempts": 0}])
def test_an_evaluation_has_an_answer_and_an_attempt_at_least(none: dict[str, int]) -> None:
    with pytest.raises(DataError, match="give at least one of each"):
        HeldOut(**none)  # type: ignore[arg-type]


def test_greedy_answers_are_all_the_same() -> None:
    with pytest.raises(DataError, match=r"evaluate\(samples=4\): greedy answers are all the same; give a temperature above 0"):
        HeldOut(samples=4)


def test_of_four_answers_no_five_can_be_chosen() -> None:
    with pytest.raises(DataError, match="pass@5 is of 1 to 4 answers"):
        HeldOut(samples=4, temperature=1.0, pass_at=(1, 5))


def test_the_baselines_know_no_operands() -> None:
    prompts: Any = SimpleNamespace(answer=["1", "1", "1", "2", "2"], template=["p", "p", "q", "q", "q"])
    assert baselines_of(prompts) == {"best_constant": 0.6, "best_blind": 0.8}  # p: 1 twice; q: 2 twice of three
