"""Which operator runs where, as the run time reads it off a plan."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from small_loop import small

from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded, Torch
from operators.fields import Advantages, RolloutLogProbs
from operators.loss import ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match
from operators.rows import keep_mixed, micro_pack, pad, shard
from operators.sync import sync
from pipelines.grpo import grpo
from pipelines.multiturn import multiturn
from pipelines.ppo import ppo
from rlflow import Feedback, RowsT, operator, pipeline
from rlflow.compile.ir import Node
from rlflow.language.diagnostic import CheckFailed
from rlflow.run.graph import GraphView


def names(nodes: Iterable[Node]) -> list[str]:
    return [node.name for node in nodes]


@pytest.mark.parametrize(
    ("plan", "stream", "batch"),
    [
        (grpo(), ["dataset", "dispatch", "engine.rollout"], ["integer_match", "shape_rewards", "grpo", "actor.train"]),
        (
            ppo(),
            ["dataset", "dispatch", "engine.rollout"],
            ["integer_match", "shape_rewards", "critic.values", "gae", "actor.train", "critic.train"],
        ),
        (
            multiturn(),
            ["dataset", "dispatch", "engine.rollout_turns"],
            ["integer_match", "shape_rewards", "grpo", "actor.train"],
        ),
    ],
)
def test_the_shipped_pipelines(plan: object, stream: list[str], batch: list[str]) -> None:
    """One optimizer step a batch: `actor.log_probs` is not among them, `actor.train` takes old log-probs from its forward."""
    view = GraphView(plan)  # type: ignore[arg-type]
    view.check_runnable()
    assert names(view.stream) == stream
    assert sorted(names(view.batch)) == sorted(batch)
    assert view.hops == []
    assert {node.rows for node in view.index.values()} == {"pad", "permute", "shard", "pack"}
    assert names(view.syncs)[0] == "sync"
    assert view.engine.name == "engine"
    assert view.reward_metric == "integer_match/is_correct"


class Rows(ModelRows, PpoRows):
    """What is trained on."""


@operator(per="row", rows="filter")
def drop_rows(rows: RowsT) -> RowsT:
    return rows


@operator(per="row", corrects=True)
def shape_of(rollout_log_probs: RolloutLogProbs) -> Advantages:
    return rollout_log_probs


@pipeline
def filtered(by: str = "group") -> None:
    actor, engine = Torch("actor"), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=4))
    score = integer_match(sample.response_text, sample.answer, sample.response_mask)
    kept = keep_mixed(sample, score.token_level_scores, sample.uid) if by == "group" else drop_rows(sample)
    ready = form_batch(kept, prompts=4)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    rows = Rows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=shape_of(ready.rollout_log_probs),
    )  # fmt: skip
    trained = actor.train(policy.move, micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=64).loss(ppo_clip(0.2, 0.28)))
    policy.close(sync(trained, engine))


def test_a_filter_of_groups_before_the_batch_is_a_hop_and_the_reward_runs_on_the_stream() -> None:
    view = GraphView(filtered())
    view.check_runnable()
    assert names(view.stream) == ["dataset", "dispatch", "engine.rollout", "integer_match"]
    assert names(view.hops) == ["keep_mixed"]
    assert names(view.batch) == ["shape_of", "actor.train"]
    crossing = {view.graph.fields[i].name for i in view.crossing}
    assert {"token_level_scores", "uid", "input_ids", "response_mask", "rollout_log_probs", "is_pad"} <= crossing
    assert not {"response_text", "answer", "responses", "leaf", "prompt_ids"} & crossing  # nobody reads them elsewhere


def test_a_filter_of_single_rows_on_the_stream_is_refused_by_the_check() -> None:
    with pytest.raises(CheckFailed, match="RLF501"):
        filtered(by="row")


def test_a_field_is_seen_through_records_to_the_node_that_made_it() -> None:
    view = GraphView(small())
    train = next(node for node in view.batch if node.losses)
    assert {view.graph.nodes[writer].name for writer in view.writers(train)} == {"engine.rollout", "actor.log_probs", "grpo"}


def test_the_numbers_of_a_made_column_are_means_over_rows() -> None:
    from rlflow.data.column import Column

    view = GraphView(small())
    judge = next(node for node in view.batch if node.name == "judge")
    by_name = {view.graph.fields[i].name: i for i in judge.outs}
    made = {
        by_name["token_level_scores"]: Column.ragged("f32", [[1.0, 2.0], [3.0]]),  # the sum over a row's tokens
        by_name["is_correct"]: Column.scalars("f32", [1.0, 0.0]),
    }
    assert view.measure(made) == {"judge/token_level_scores": 3.0, "judge/is_correct": 0.5}
