"""A language model as judge, against a real server: what it is asked, how its reply is read, and what becomes of rows without one."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import torch
from chat_server import says, serving, status  # beside this file

from operators.chat import ChatServer, Reply
from operators.chat_judge import TEMPLATE, Question, judged_by
from operators.judging import Verdict
from operators.mixture import mixture
from operators.reward import RewardFn, integer_match
from operators.tasks import tagged
from pipelines.grpo import grpo
from rlflow.errors import DataError, OperatorError, UsageError
from rlflow.language.config import from_config, to_config
from rlflow.measure import collected, settled

SHORT = Question(template="{response}")


def judge_at(url: str, question: Question = SHORT, **options: Any) -> RewardFn:
    cache = options.pop("cache", False)
    return judged_by(ChatServer(**{"url": url, "model": "judge", "attempts": 2, "backoff_s": 0.01} | options), question, cache=cache)


def ones(rows: int) -> torch.Tensor:
    return torch.ones(rows, 2, dtype=torch.bool)


# --- what is asked, and how a reply is read -----------------------------------------------------------------------------------------------
def test_the_prompt_holds_response_and_answer() -> None:
    prompt = Question().of("it is {answer}", "7")
    assert "Question: (not given)\nReference answer: 7\n<response>\nit is {answer}\n</response>" in prompt
    assert len(prompt) == len(TEMPLATE) - len("{question}{answer}{response}") + len("(not given)7it is {answer}")


def test_the_question_is_known_where_the_answer_of_a_row_holds_one() -> None:
    asked = Question(template="{question}|{answer}|{response}")
    assert asked.of("r", json.dumps({"question": "2 + 5?", "answer": "7"})) == "2 + 5?|7|r"
    assert asked.of("r", tagged("sums", "7")) == "(not given)|7|r"
    assert asked.of("r", "[7]") == "(not given)|[7]|r"


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("It says 7. Score: 1", 1.0),
        ("**Score:** 0", 0.0),
        ("score = 0.5", 0.5),
        ("Score: 1 would be too much.\nScore: 0", 0.0),
    ],
)
def test_the_last_score_counts(reply: str, score: float) -> None:
    assert Question().verdict(Reply(reply)) == Verdict(score)


def test_a_score_on_another_scale() -> None:
    rating = Question(template="{response}", score=r"(Rating|Mark): ([0-9]+)", full=10.0)
    assert rating.verdict(Reply("Rating: 7")).reason == "error"  # group 1 is the word
    assert Question(template="{response}", score=r"(?:Rating|Mark): ([0-9]+)", full=10.0).verdict(Reply("Mark: 7")) == Verdict(0.7)


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ("I cannot say", "the judge said no score: 'I cannot say'"),
        ("", "the judge said no score: ''"),
        ("Score: 2", "the judge said 2, of 0 to 1: 'Score: 2'"),
        ("Score: -1", "the judge said no score: 'Score: -1'"),
    ],
)
def test_a_reply_without_a_score_is_a_failure(reply: str, detail: str) -> None:
    assert Question().verdict(Reply(reply)) == Verdict(0.0, "error", detail)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"template": "Is it right?"}, r"has no \{response\}"),
        ({"score": "("}, "is no regular expression"),
        ({"score": "[0-9]"}, "give a form with a group"),
        ({"full": 0.0}, "a whole point above 0"),
    ],
)
def test_a_question_that_is_none_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Question(**options)


# --- rows -------------------------------------------------------------------------------------------------------------------------------
def test_scores_are_put_at_the_last_trained_token_and_a_blank_response_is_not_asked_about() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 0]]).bool()
    with serving({"a": [says("Score: 1")], "b": [says("Score: 0.25")]}) as server:
        scores = judge_at(server.url)(["a", "b", " "], [""] * 3, mask)
        assert server.times == {"a": 1, "b": 1}
    assert scores.token_level_scores.tolist() == [[0, 1, 0], [0, 0, 0.25], [0, 0, 0]]
    assert scores.is_correct.tolist() == [1, 0, 0]


def test_rows_without_a_score_are_zero_counted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    collected()
    with serving({"b": [status(500)], "c": [says("well")]}) as server, caplog.at_level(logging.WARNING):
        scores = judge_at(server.url)(["a", "b", "c", "d"], [""] * 4, ones(4))
    assert scores.is_correct.tolist() == [1, 0, 0, 1]
    assert collected() == {"failed/error": 2.0}
    assert f"judge at {server.url} failed on 2 of 4 rows, which score 0; row 1 ('b'): error, 2 attempts" in caplog.text


def test_a_judge_that_fails_on_every_row_ends_the_run() -> None:
    with serving(other=status(404, "no model judge")) as server, pytest.raises(OperatorError) as failed:
        judge_at(server.url)(["a", "b", "c", "d"], [""] * 4, ones(4))
    assert "failed on all of the 4 rows" in str(failed.value)
    assert "row 0 ('a'): error, status 404: no model judge" in str(failed.value)


def test_equal_prompts_of_a_call_are_asked_once_if_that_is_asked_for() -> None:
    with serving({"b": [says("Score: 0")]}) as server:
        assert judge_at(server.url, cache=True)(["a", "b", "a"], [""] * 3, ones(3)).is_correct.tolist() == [1, 0, 1]
        assert server.times == {"a": 1, "b": 1}
        judge_at(server.url, cache=True)(["a"], [""], ones(1))  # nothing is kept for the next call
        judge_at(server.url)(["a", "a"], [""] * 2, ones(2))
        assert server.times == {"a": 4, "b": 1}


def test_rows_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(DataError, match="2 responses, 1 answers, 3 rows"):
        judge_at("http://127.0.0.1:9/v1")(["a", "b"], [""], ones(3))


def test_a_rule_and_a_judge_in_a_mixture() -> None:
    collected()
    with serving({"7": [says("Score: 0.5")]}) as server:
        reward = mixture(correct=(integer_match, 1.0), judge=(judge_at(server.url), 0.2))
        scores = reward(["7", "8"], ["7", "7"], ones(2))
    assert scores.token_level_scores.sum(-1).tolist() == pytest.approx([1.1, 0.2])
    told = settled(collected())
    assert (told["reward/correct"], told["reward/judge"], told["reward/judge/only"]) == (0.5, 0.75, 0.5)


# --- in a pipeline ------------------------------------------------------------------------------------------------------------------------
def test_a_judge_is_configuration_and_a_plan_never_holds_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_JUDGE_KEY", "sk-very-secret")
    reward = judge_at("http://127.0.0.1:9/v1", api_key_env="A_JUDGE_KEY")
    plan = grpo(reward=reward)
    written = plan.to_json().decode()
    assert "A_JUDGE_KEY" in written
    assert "secret" not in written
    assert "chat_judge" in [node.name for node in plan.graph.nodes]
    assert from_config(to_config(reward)).keywords == reward.keywords  # type: ignore[attr-defined]
