"""What rewards may be shaped by: the shipped operators of operators/shaping.py and a mask of filters.py in a loop, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.filters import mask_overlong
from operators.loss import ppo_clip
from operators.mismatch import anchor_on_rollout
from operators.records import ModelRows, PpoRows, Sample
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.shaping import kl_in_reward, overlong_penalty
from operators.sync import sync
from operators.trainers import Torch
from rlflow import CheckFailed, Feedback, Plan, Tensor, pipeline


class Rows(ModelRows, PpoRows):
    """What is trained on."""


class Loop(NamedTuple):
    ready: Sample
    scores: Tensor  # raw
    rewards: Tensor  # shaped
    old: Tensor
    ref: Tensor


def plan_of(shaped: Callable[[Loop], Tensor], temperature: float = 1.0, overlong: bool = False) -> Plan:
    @pipeline
    def loop() -> None:
        actor, engine, reference = Torch("actor"), Embedded("engine"), Torch("reference", temperature=temperature)
        policy = Feedback("policy", init=actor.load())
        ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=8)), prompts=32)
        score = integer_match(ready.response_text, ready.answer, ready.response_mask)
        old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
        ref = reference.log_probs(reference.load(), ready.input_ids, ready.position_ids, ready.attention_mask)
        rewards = shaped(Loop(ready, score.token_level_scores, shape_rewards(score.token_level_scores), old, ref))
        advantages = grpo(rewards, ready.response_mask, ready.uid).advantages
        rows = Rows(
            input_ids=ready.input_ids, position_ids=ready.position_ids, is_pad=ready.is_pad, old_log_probs=old, advantages=advantages,
            response_mask=mask_overlong(ready.response_mask, ready.is_truncated) if overlong else ready.response_mask,
        )  # fmt: skip
        rows = shard(rebalance(pad(rows, multiple=1), pieces=4), on=actor)
        policy.close(sync(actor.train(policy.move, micro_pack(rows, max_tokens=4096).loss(ppo_clip())), engine))

    return loop()


def codes(shaped: Callable[[Loop], Tensor], temperature: float = 1.0) -> list[str]:
    with pytest.raises(CheckFailed) as failed:
        plan_of(shaped, temperature)
    return [found.code for found in failed.value.diagnostics if found.severity == "error"]


def penalised(s: Loop) -> Tensor:
    return kl_in_reward(s.rewards, s.old, s.ref, s.ready.response_mask, beta=0.01)


def test_a_penalty_by_old_log_probs_is_accepted() -> None:
    assert plan_of(penalised).warnings == ()
    assert (
        plan_of(lambda s: penalised(s._replace(rewards=overlong_penalty(s.rewards, s.ready.response_mask, limit=8, buffer=2)))).warnings
        == ()
    )


def test_so_is_one_by_what_the_rollout_recorded_which_needs_no_forward() -> None:
    def penalty(s: Loop) -> Tensor:
        return kl_in_reward(s.rewards, anchor_on_rollout(s.ready.rollout_log_probs), s.ref, s.ready.response_mask, beta=0.01)

    plan = plan_of(penalty)
    needed = {node.name for node in plan.graph.nodes if node.id in plan.facts.needed}
    assert "reference.log_probs" in needed
    assert "actor.log_probs" not in needed


def test_a_penalty_keeps_the_reference_alive_and_without_one_it_is_dropped() -> None:
    plan = plan_of(lambda s: s.rewards)
    assert "reference.log_probs" not in {node.name for node in plan.graph.nodes if node.id in plan.facts.needed}


@pytest.mark.parametrize("given", [
    lambda s: (s.ref, s.ref),  # it would be 0
    lambda s: (s.old, s.old),
    lambda s: (s.ready.rollout_log_probs, s.ref),  # not without saying so
])  # fmt: skip
def test_log_probs_of_another_reading_are_refused_here_too(given: Callable[[Loop], tuple[Tensor, Tensor]]) -> None:
    assert codes(lambda s: kl_in_reward(s.rewards, *given(s), s.ready.response_mask, beta=0.01)) == ["RLF121"]


def test_policy_and_reference_exchanged_are_refused() -> None:
    assert codes(lambda s: kl_in_reward(s.rewards, s.ref, s.old, s.ready.response_mask, beta=0.01)) == ["RLF122"]


def test_a_reference_at_another_temperature_is_refused() -> None:
    assert codes(penalised, temperature=0.6) == ["RLF123"]


@pytest.mark.parametrize("shaped", [
    lambda s: kl_in_reward(s.scores, s.old, s.ref, s.ready.response_mask, beta=0.01),
    lambda s: overlong_penalty(s.scores, s.ready.response_mask, limit=8, buffer=2),
])  # fmt: skip
def test_raw_scores_are_not_shaped_in_place_of_rewards(shaped: Callable[[Loop], Tensor]) -> None:
    """What is shaped is what is trained on: the raw score stays as the verifier gave it."""
    assert codes(shaped) == ["RLF121"]


def test_a_mask_of_what_was_cut_off_is_for_the_losses() -> None:
    assert plan_of(lambda s: s.rewards, overlong=True)
