"""What corrects for a lag, what only measures it, and what neither may be given: the shipped operators of operators/mismatch*.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.fields import Policy
from operators.loss import ppo_clip
from operators.mismatch import (
    anchor_on_rollout,
    importance_weighted,
    reject_rows,
    reject_tokens,
    self_normalized_importance,
    truncated_importance,
)
from operators.mismatch_metrics import mismatch_metrics
from operators.records import ModelRows, PpoRows, Sample
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from operators.trainers import Torch
from rlflow import CheckFailed, Feedback, Plan, Tensor, pipeline
from rlflow.language.operator import declaration_of
from rlflow.run.graph import GraphView


class Rows(ModelRows, PpoRows):
    """What is trained on."""


class Loop(NamedTuple):
    """What a correction is given, and may put another in the place of."""

    policy: Feedback[Policy]
    ready: Sample
    old: Tensor
    ref: Callable[[], Tensor]
    advantages: Tensor
    mask: Tensor


def plan_of(correct: Callable[[Loop], Loop], max_lag: int = 1, temperature: float = 1.0) -> Plan:
    @pipeline
    def loop() -> None:
        actor, engine = Torch("actor"), Embedded("engine", temperature=temperature)
        policy = Feedback("policy", init=actor.load(), max_lag=max_lag)
        ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=8)), prompts=32)
        score = integer_match(ready.response_text, ready.answer, ready.response_mask)
        advantages = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid).advantages
        old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

        def ref() -> Tensor:
            reference = Torch("reference")
            return reference.log_probs(reference.load(), ready.input_ids, ready.position_ids, ready.attention_mask)

        used = correct(Loop(policy, ready, old, ref, advantages, ready.response_mask))
        rows = Rows(
            input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=used.mask, is_pad=ready.is_pad,
            old_log_probs=used.old, advantages=used.advantages,
        )  # fmt: skip
        rows = shard(rebalance(pad(rows, multiple=1), pieces=4), on=actor)
        policy.close(sync(actor.train(policy.move, micro_pack(rows, max_tokens=4096).loss(ppo_clip())), engine))

    return loop()


def refused(correct: Callable[[Loop], Loop], **parameters: Any) -> list[str]:
    with pytest.raises(CheckFailed) as failed:
        plan_of(correct, **parameters)
    return [found.code for found in failed.value.diagnostics]


def weighed(operator: Any, **options: Any) -> Callable[[Loop], Loop]:
    return lambda s: s._replace(advantages=operator(s.advantages, s.old, s.ready.rollout_log_probs, s.ready.response_mask, **options))


def rejected(operator: Any, **options: Any) -> Callable[[Loop], Loop]:
    return lambda s: s._replace(mask=operator(s.ready.response_mask, s.old, s.ready.rollout_log_probs, **options))


def measured(s: Loop) -> Loop:
    mismatch_metrics(s.policy.current, s.old, s.ready.rollout_log_probs, s.ready.response_mask, s.ready.token_versions)
    return s


CORRECTIONS = {
    "truncated": weighed(truncated_importance),
    "sequence": weighed(importance_weighted, level="sequence"),
    "geometric": weighed(importance_weighted, level="geometric", low=0.9, high=1.1, outside="zero"),
    "self-normalized": weighed(self_normalized_importance),
    "tokens rejected": rejected(reject_tokens, low=0.5, high=2.0),
    "rows rejected": rejected(reject_rows, low=0.9, high=1.1),
    "anchored": lambda s: s._replace(old=anchor_on_rollout(s.ready.rollout_log_probs)),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_each_of_them_accounts_for_a_lag(name: str) -> None:
    unread = ["RLF210"] if name == "anchored" else []  # `actor.log_probs`, which no loss anchors on any more
    assert [found.code for found in plan_of(CORRECTIONS[name]).warnings] == unread
    assert refused(lambda s: s) == ["RLF307"]


def test_measuring_the_mismatch_corrects_nothing() -> None:
    """It may compare two versions, and the loss is as uncorrected as before."""
    assert refused(measured) == ["RLF307"]
    assert plan_of(lambda s: CORRECTIONS["truncated"](measured(s)))


def test_all_declare_the_same_and_nothing_of_temperature_or_staleness() -> None:
    every = [truncated_importance, importance_weighted, self_normalized_importance, reject_tokens, reject_rows, anchor_on_rollout]
    declared = [declaration_of(operator) for operator in (*every, mismatch_metrics)]
    assert [one.corrects for one in declared if one] == [("version", "engine")] * 7


@pytest.mark.parametrize("name", ["truncated", "geometric", "self-normalized", "tokens rejected", "rows rejected"])
def test_none_corrects_for_another_temperature(name: str) -> None:
    assert refused(CORRECTIONS[name], temperature=0.6) == ["RLF123"]


MISTAKEN: dict[str, tuple[str, Callable[[Loop], Any]]] = {
    "weights, swapped": ("RLF122", lambda s: truncated_importance(s.advantages, s.ready.rollout_log_probs, s.old, s.mask)),
    "mask, swapped": ("RLF122", lambda s: reject_rows(s.mask, s.ready.rollout_log_probs, s.old, high=2.0)),
    "a reference for the rollout": ("RLF121", lambda s: importance_weighted(s.advantages, s.old, s.ref(), s.mask)),
    "a reference for the anchor": ("RLF121", lambda s: reject_tokens(s.mask, s.ref(), s.ready.rollout_log_probs, high=2.0)),
    "metrics of a reference": (
        "RLF121", lambda s: mismatch_metrics(s.policy.current, s.old, s.ref(), s.ready.response_mask, s.ready.token_versions),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKEN)
def test_log_probs_of_another_reading_are_refused(name: str) -> None:
    code, call = MISTAKEN[name]

    def given(s: Loop) -> Loop:
        made = call(s)
        if made is None:
            return CORRECTIONS["truncated"](s)
        return s._replace(mask=made) if "mask" in name or "anchor" in name else s._replace(advantages=made)

    assert refused(given) == [code]


def test_metrics_run_with_the_batch_and_are_no_evaluation() -> None:
    view = GraphView(plan_of(lambda s: CORRECTIONS["truncated"](measured(s))))
    view.check_runnable()
    assert "mismatch_metrics" in [node.name for node in view.batch]
    assert view.sinks == []
    (metrics,) = (node for node in view.batch if node.sink)
    assert view.plan.facts.site[metrics.id] == "host"
