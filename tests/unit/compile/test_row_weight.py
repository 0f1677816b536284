"""A loss that weighs rows by their trajectory: the keys are read where it is trained, and are asked for where they are not there."""

from __future__ import annotations

from typing import Any

import pytest

from operators.loss import ppo_clip
from operators.records import ModelRows, PolicyForward, PpoRows
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from pipelines.forking import forking
from rlflow import CheckFailed, Feedback, Loss, Plan, pipeline
from rlflow.run.graph import GraphView


class BareRows(ModelRows, PpoRows):
    """Rows that do not say whose they are."""


class Odd(Loss[PolicyForward, PpoRows]):
    row_weight: Any = "leaf"


def refused(loss: Loss[PolicyForward, PpoRows]) -> Any:
    from operators.advantage import grpo
    from operators.batching import dispatch, form_batch
    from operators.dataset import dataset
    from operators.engines import Embedded
    from operators.reward import integer_match, shape_rewards
    from operators.trainers import Torch

    @pipeline
    def loop() -> None:
        actor, engine = Torch("actor"), Embedded("engine")
        policy = Feedback("policy", init=actor.load())
        ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=2)), prompts=2)
        score = integer_match(ready.response_text, ready.answer, ready.response_mask)
        adv = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid)
        old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
        rows = BareRows(
            input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
            old_log_probs=old, advantages=adv.advantages,
        )  # fmt: skip
        micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)
        policy.close(sync(actor.train(policy.move, micro.loss(loss)), engine))

    with pytest.raises(CheckFailed) as failed:
        loop()
    (found,) = failed.value.diagnostics
    return found


def brought(plan: Plan) -> set[str]:
    """Fields that the call which trains is handed."""
    view = GraphView(plan)
    (train,) = (node for node in view.batch if node.losses)
    return {use.param.partition(".")[2] for use in view.handed[train.id]}


def test_the_keys_are_brought_to_the_trainer_only_where_rows_are_weighed() -> None:
    assert {"uid", "traj_uid"} <= brought(forking(row_weight="trajectory"))
    assert {"uid", "traj_uid"} <= brought(forking(row_weight="group"))
    assert not {"uid", "traj_uid"} & brought(forking(row_weight="row"))


def test_a_record_without_the_keys_is_refused() -> None:
    found = refused(ppo_clip(row_weight="trajectory"))
    assert (found.code, found.message) == ("RLF001", "`BareRows` has no `uid` and `traj_uid`, by which `ppo_clip` weighs rows")
    assert (found.label, found.help) == ('row_weight="trajectory"', "give `BareRows` the fields `uid` and `traj_uid`")


def test_a_word_that_is_none_is_refused_before_the_run() -> None:
    found = refused(Odd())
    assert (found.code, found.message) == ("RLF013", "`Odd` weighs rows by 'leaf', which nobody knows")
    assert found.help == "a row weight is one of row, trajectory, group"


def test_a_shipped_loss_with_a_misspelt_weight_is_one_mistake() -> None:
    found = refused(ppo_clip(row_weight="trajectories"))  # type: ignore[arg-type]
    assert found.message.startswith("`row_weight` of `ppo_clip` is 'row' or 'trajectory' or 'group', got 'trajectories'")
