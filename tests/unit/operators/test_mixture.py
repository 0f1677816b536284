"""A reward of named parts: the sum by hand, who says what is right, what is told of each part, and the graph of it."""

from __future__ import annotations

import logging

import pytest
import torch

from operators.fields import Answer, IsCorrect, ResponseMask, ResponseText, TokenRewards
from operators.mixture import mixture, watch_rewards
from operators.records import Scores
from operators.reward import RewardFn, integer_match, last_token, matches
from pipelines.grpo import grpo
from rlflow import CheckFailed, Plan, Record, operator
from rlflow.errors import UsageError
from rlflow.language.config import from_config, to_config
from rlflow.measure import collected, settled
from rlflow.run.graph import GraphView


class Shaped(Record):
    token_level_scores: TokenRewards
    is_correct: IsCorrect


@operator(per="row")
def half(response_text: ResponseText, answer: Answer, response_mask: ResponseMask) -> Scores:
    """Half a point to each."""
    return Scores(token_level_scores=0.5 * last_token(response_mask), is_correct=response_mask.new_zeros(len(answer)).float())


@operator(per="row")
def shaped(response_text: ResponseText, answer: Answer, response_mask: ResponseMask) -> Shaped: ...


MIXED = mixture(correct=(integer_match, 1.0), format=(matches(r"[0-9]+"), 0.1))

# a row each:  right, in form | right, not in form | wrong, in form | wrong | right, but nothing of it trains
TEXTS = ["7", "it is 7", "8", "no", "7"]
MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()


def test_the_sum_by_hand_at_the_last_trained_token() -> None:
    scores = MIXED(TEXTS, ["7"] * 5, MASK)
    at_last = [1.1, 0, 0, 0, 0, 1.0, 0.1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert scores.token_level_scores.flatten().tolist() == pytest.approx(at_last)


def test_correct_is_what_one_part_says_and_not_the_sum() -> None:
    heavy = mixture(format=(matches(r"[0-9]+"), 5.0), right=(integer_match, 0.5), is_correct="right")
    scores = heavy(TEXTS, ["7"] * 5, MASK)
    assert scores.is_correct.tolist() == [1, 1, 0, 0, 1]
    assert scores.token_level_scores.sum(-1).tolist() == pytest.approx([5.5, 0.5, 5.0, 0.0, 0.0])


def test_each_part_is_told_by_its_name_over_the_rows_that_train() -> None:
    collected()
    MIXED(TEXTS, ["7"] * 5, MASK)
    told = settled(collected())
    # scores 1.1, 1, .1, 0 (mean .55) and tokens 1, 3, 1, 2 (mean 1.75)
    covariance = 0.55 * -0.75 + 0.45 * 1.25 + -0.45 * -0.75 + -0.55 * 0.25
    spread = ((0.55**2 + 0.45**2) * 2 * (0.75**2 * 2 + 1.25**2 + 0.25**2)) ** 0.5
    expected = {"reward/correct": 0.5, "reward/format": 0.5, "reward/format/only": 0.25, "reward/length_correlation": covariance / spread}
    assert told == pytest.approx(expected, rel=1e-5)


def test_a_part_that_giveshalf_a_point_is_no_win_by_form() -> None:
    collected()
    mixture(correct=(integer_match, 1.0), half=(half, 1.0))(["8"] * 2, ["7"] * 2, torch.ones(2, 1).bool())
    told = settled(collected())
    assert (told["reward/half"], told["reward/half/only"]) == (0.5, 0.0)


def test_rows_of_one_score_and_one_length_are_told_without_a_nan() -> None:
    collected()
    watch_rewards(torch.tensor([[0.0, 0.1]] * 3), torch.ones(3, 2).bool())
    assert settled(collected()) == {"reward/length_correlation": 0.0}


def test_what_is_outside_the_mask_is_not_told() -> None:
    collected()
    watch_rewards(torch.tensor([[1.0, float("nan")], [float("nan"), 0.0], [0.0, 0.0]]), torch.tensor([[1, 0], [0, 1], [1, 1]]))
    # scores 1, 0, 0 and tokens 1, 1, 2: covariance -1/9, deviations √2/3 and √2/3
    assert settled(collected())["reward/length_correlation"] == pytest.approx(-0.5)


def test_rewards_that_are_watched_are_those_that_were_given() -> None:
    raw = torch.tensor([[0.0, 1.0]])
    shaped = watch_rewards(raw, torch.ones(1, 2).bool())
    assert shaped.tolist() == [[0, 1]]
    assert shaped is not raw


def test_failures_of_a_part_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    collected()
    slow = mixture(correct=(integer_match, 1.0), format=(matches("(a+)+b", timeout_s=1.0), 0.5))
    with caplog.at_level(logging.WARNING):
        scores = slow(["a" * 60 + "7", "7", "8"], ["7"] * 3, torch.ones(3, 1).bool())
    assert scores.token_level_scores.flatten().tolist() == [1.0, 1.0, 0.0]
    told = settled(collected())
    assert (told["failed/timeout"], told["reward/format"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"right": (integer_match, 1.0)}, "no part 'correct', of right; say which of them knows what is right"),
        ({}, "no part 'correct', of none"),
        ({"correct": (integer_match, float("nan"))}, "the weight of `correct` is nan"),
    ],
)
def test_a_mixture_that_is_none_is_refused(parts: dict[str, tuple[RewardFn, float]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mixture(**parts)


def test_a_mixture_is_configuration_that_another_process_can_read() -> None:
    again = from_config(to_config(MIXED))
    assert again(["7", "it is 8"], ["7", "7"], torch.ones(2, 1).bool()).token_level_scores.flatten().tolist() == pytest.approx([1.1, 0.0])


# --- in a pipeline ----------------------------------------------------------------------------------------------------------------------
def plan_of(reward: RewardFn) -> Plan:
    return grpo(reward=reward)


def test_every_part_is_a_node_and_the_correct_one_is_the_judgement() -> None:
    plan = plan_of(mixture(format=(matches(r"[0-9]+"), 0.1), correct=(integer_match, 1.0)))
    names = [node.name for node in plan.graph.nodes if node.operator and node.operator.startswith(("operators.reward", "operators.mix"))]
    assert names == ["integer_match", "verified", "add_part", "add_part:total", "shape_rewards"]
    view = GraphView(plan)
    assert view.reward_metric == "integer_match/is_correct"
    assert view.judged == next(f.id for f in plan.graph.fields if f.name == "is_correct" and f.source is None)


def test_a_part_that_is_shaped_is_refused() -> None:
    with pytest.raises(CheckFailed, match=r"reward\(shaped\)"):
        plan_of(mixture(correct=(integer_match, 1.0), short=(shaped, 1.0)))


def test_rewards_of_any_pipeline_can_be_watched_by_a_swap() -> None:
    plan = plan_of(integer_match).replace("shape_rewards", watch_rewards)
    (node,) = [node for node in plan.graph.nodes if node.name == "watch_rewards"]
    assert sorted(plan.graph.fields[use.field].name for use in node.uses) == ["response_mask", "token_level_scores"]
