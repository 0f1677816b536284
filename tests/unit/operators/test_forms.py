"""Verifiers and rewards of form: regular expressions, and what becomes of those that backtrack for ever."""

from __future__ import annotations

import pickle

import pytest
import torch

from operators.judging import name_of, score_texts
from operators.reward import captures, matches, think_answer
from operators.verifiers import THINK_ANSWER, Captures, Matches
from rlflow.errors import UsageError
from rlflow.language.config import from_config, to_config
from rlflow.measure import collected

ONES = torch.ones(3, 1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("form", "response", "score"),
    [
        (r"-?[0-9]+", "12", 1),
        (r"-?[0-9]+", "about 12", 0),
        (r"-?[0-9]+", "12\n", 0),  # all of it, also the end of the line
        (r"a.b", "a\nb", 1),
        (r"", "", 1),
        (THINK_ANSWER, "<think>1 + 1</think>\n<answer>2</answer>", 1),
        (THINK_ANSWER, "<think>\n</think><answer></answer>\n", 1),
        (THINK_ANSWER, "<answer>2</answer>", 0),
        (THINK_ANSWER, "<think>a</think> so <answer>2</answer>", 0),
        (THINK_ANSWER, "<think>a<think>b</think></think><answer>2</answer>", 0),
        (THINK_ANSWER, "<think>a</think><answer>2</answer><answer>3</answer>", 0),
    ],
)
def test_matches(form: str, response: str, score: float) -> None:
    assert Matches(form)(response, "whatever") == score


@pytest.mark.parametrize(
    ("form", "response", "answer", "score"),
    [
        (r"<answer>(.*?)</answer>", "<answer>3</answer> no: <answer> 4\n</answer>", "4", 1),
        (r"<answer>(.*?)</answer>", "<answer>4</answer> no: <answer>3</answer>", "4", 0),
        (r"<answer>(.*?)</answer>", "4", "4", 0),
        (r"is ([0-9]+)|none", "it is 4, or none", "4", 0),  # the last match has nothing in its group
        (r"is ([0-9]+)|none", "none", "", 1),
    ],
)
def test_captures(form: str, response: str, answer: str, score: float) -> None:
    assert Captures(form)(response, answer) == score


def test_a_form_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(UsageError, match=r"'\(' is no regular expression: missing \), unterminated subpattern at position 0"):
        matches("(")


def test_a_form_without_a_group_captures_nothing_and_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'\[0-9\]\+' has no group"):
        captures("[0-9]+")


def test_a_form_that_backtracks_for_ever_costs_its_row_only() -> None:
    collected()
    scores = matches(r"(a+)+b", timeout_s=1.0)(["aab", "a" * 60, "ab"], [""] * 3, ONES)
    assert scores.token_level_scores.flatten().tolist() == [1.0, 0.0, 1.0]
    assert collected() == {"failed/timeout": 1.0}


def test_a_reward_of_form_is_configuration_that_another_process_can_read() -> None:
    again = from_config(to_config(captures("is ([0-9])")))
    assert again.keywords == {"by": Captures("is ([0-9])"), "timeout_s": 5.0}
    assert pickle.loads(pickle.dumps(Matches("a"))) == Matches("a")


def test_the_ready_made_reward_of_form() -> None:
    texts = ["<think>a</think><answer>2</answer>", "2", ""]
    assert think_answer(texts, ["3"] * 3, ONES).is_correct.tolist() == [1.0, 0.0, 0.0]


def test_a_verifier_with_options_is_named_with_them() -> None:
    assert name_of(Matches("a+")) == "operators.verifiers.Matches(form='a+')"
    assert [verdict.score for verdict in score_texts(Matches("a+"), ["aa", "b"], ["", ""], workers=1)] == [1.0, 0.0]
