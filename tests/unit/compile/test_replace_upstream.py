"""What a replacement asks for and the call does not give: the latest earlier field of that name on the same rows, or a refusal."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from small_loops import filtered, penalised
from start import Start
from vocabulary import (
    Advantage,
    InputIds,
    LogProbs,
    OldLogProbs,
    ResponseMask,
    RolloutLogProbs,
    TokenRewards,
    TokenScores,
    TorchCritic,
    Uid,
    gae,
    rloo,
)

from pipelines.grpo import grpo as grpo_loop
from pipelines.multiturn import multiturn
from pipelines.ppo import ppo
from rlflow import CheckFailed, Plan, operator, pipeline
from rlflow.language import trace
from rlflow.language.swap import row_sets


@operator(per="group")
def sampled(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, rollout_log_probs: RolloutLogProbs) -> Advantage: ...  # type: ignore[empty-body]


@operator(per="group")
def sampled_or_not(
    token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, rollout_log_probs: RolloutLogProbs | None = None
) -> Advantage: ...  # type: ignore[empty-body]


@operator(per="group")
def late(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, old: OldLogProbs) -> Advantage: ...  # type: ignore[empty-body]


@operator(per="row")
def of_prompts(token_level_rewards: TokenRewards, response_mask: ResponseMask, prompt_ids: InputIds) -> Advantage: ...  # type: ignore[empty-body]


def halved(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, rollout_log_probs: RolloutLogProbs) -> Advantage:
    """No operator: a plain function of operators."""
    return sampled(token_level_rewards, response_mask, uid, rollout_log_probs)


def bound(plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
    """Parameters that the call gave; those from earlier calls, with the writer."""
    (one,) = plan.graph.replaced
    return one.given, {parameter: plan.graph.writer(field).name for parameter, field in one.upstream.items()}


@pytest.mark.parametrize("other", [sampled, sampled_or_not, halved])
def test_the_field_of_the_rows_that_the_call_is_about(other: Any) -> None:
    plan = penalised().replace("grpo", other)
    assert bound(plan) == (("token_level_rewards", "response_mask", "uid"), {"rollout_log_probs": "form_batch"})
    assert ("rollout_log_probs" in plan.dropped.fields) is False


def test_what_the_call_gives_comes_first() -> None:
    assert bound(penalised().replace("grpo", rloo)) == (("token_level_rewards", "response_mask", "uid"), {})


def test_configuration_of_a_partial_is_not_looked_for() -> None:
    plan = penalised().replace("grpo", functools.partial(sampled_or_not, rollout_log_probs=None))
    assert bound(plan)[1] == {}


def test_a_field_that_is_made_later_is_not_there() -> None:
    with pytest.raises(CheckFailed, match="`late` cannot replace `grpo`: nothing gives its `old`"):
        penalised().replace("grpo", late)


def test_a_field_on_other_rows_is_not_there() -> None:
    """`prompt_ids` are of the prompts, the call is about trajectories."""
    with pytest.raises(CheckFailed, match="no earlier field on the same rows is called `prompt_ids`"):
        penalised().replace("grpo", of_prompts)


@operator(per="group")
def on_scores(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, token_level_scores: TokenScores) -> Advantage: ...  # type: ignore[empty-body]


def test_rows_that_a_filter_dropped_are_other_rows() -> None:
    """There are scores of before the filter, of after it, and of the batch: only the last are of the rows of the call."""
    assert bound(filtered().replace("grpo", on_scores))[1] == {"token_level_scores": "form_batch"}


@pipeline
def with_critic(twice: bool = False) -> None:
    """The critic's values are there for whoever asks; GRPO does not."""
    s, critic = Start(), TorchCritic("critic")
    frozen = critic.load()
    values = critic.values(frozen, s.ready.input_ids, s.ready.response_mask)
    if twice:
        values = critic.values(frozen, s.ready.input_ids, s.ready.response_mask)
    assert values is not None
    s.finish(s.rows())


@pytest.mark.parametrize(("twice", "writer"), [(False, "critic.values"), (True, "critic.values:values")])
def test_of_two_the_latest(twice: bool, writer: str) -> None:
    assert bound(with_critic(twice).replace("grpo", gae)) == (("token_level_rewards", "response_mask"), {"values": writer})


def test_the_refusal_says_what_was_bound() -> None:
    @operator(per="group")
    def both(
        token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, rollout_log_probs: RolloutLogProbs, log_prob: LogProbs
    ) -> Advantage: ...  # type: ignore[empty-body]

    with pytest.raises(CheckFailed) as refused:
        penalised().replace("grpo", both)
    (found,) = refused.value.diagnostics
    assert found.notes == (
        "the call gives `token_level_rewards`, `response_mask`, `uid`",
        "`rollout_log_probs` is taken from `form_batch`",
        "no earlier field on the same rows is called `log_prob`; did you mean `rollout_log_probs`?",
    )


@pytest.mark.parametrize("loop", [penalised, filtered, grpo_loop, ppo, multiturn])
def test_rows_told_from_declarations_are_those_that_are_inferred(loop: Any) -> None:
    fn = loop.__rlflow_pipeline__
    traced = trace.Trace(fn.__name__, fn.__module__, fn.__code__)
    trace.tracing(traced, fn)
    told, inferred = row_sets(traced.fields), loop().facts.rows
    assert len(set(told.values())) > 1
    pairs = {(told[field], rows) for field, rows in inferred.items()}
    assert len(pairs) == len({number for number, _ in pairs}) == len({rows for _, rows in pairs})
