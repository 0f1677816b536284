"""Which operator runs where, as the run time reads it off a plan."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from small_loop import small

from operators.advantage import grpo as group_mean
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.fields import Advantages, RolloutLogProbs, TokenScores
from operators.filters import keep_mixed
from operators.loss import ppo_clip
from operators.records import ModelRows, PpoRows, Sample
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from operators.trainers import Torch
from pipelines.grpo import grpo
from pipelines.multiturn import multiturn
from pipelines.ppo import ppo
from rlflow import Devices, Feedback, Plan, RowsT, operator, pipeline
from rlflow.compile.ir import Node
from rlflow.errors import UsageError
from rlflow.language.diagnostic import CheckFailed
from rlflow.run.graph import GraphView
from rlflow.run.record import Options
from rlflow.run.session import schedule


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
    assert view.judgement({"integer_match/is_correct": 0.25}, 8) == (8, 2)
    assert view.judgement({}, 8) == (0, 0)


@pytest.mark.parametrize("plan", [grpo(), grpo(kl=0.1, max_lag=1, dp=2), ppo(), multiturn(), small(early=True)])
def test_calls_run_where_the_plan_says(plan: Plan) -> None:
    view, site = GraphView(plan), plan.facts.site
    engine = f"{view.engine.name}.rollout"
    assert {site[node.id] for node in (*view.stream, *view.sinks, *view.datasets)} == {engine}
    assert {site[node.id] for node in (*view.index.values(), view.form)} == {"controller"}
    for node in (*view.hops, *view.batch, *view.loads):
        assert site[node.id] == ("host" if node.worker is None else view.graph.workers[node.worker].name)
    for node in view.syncs:
        assert site[node.id] == view.graph.workers[node.weights[0].owner].name


class Rows(ModelRows, PpoRows):
    """What is trained on."""


@operator(per="row", rows="filter")
def drop_rows(rows: RowsT) -> RowsT:
    return rows


@operator(per="row", corrects=("version", "engine"))
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


def test_the_filter_looks_at_whole_groups_where_the_run_does() -> None:
    plan = filtered()
    assert {plan.facts.site[node.id] for node in GraphView(plan).hops} == {"host"}


@operator(per="row")
def shaped_after(token_level_scores: TokenScores) -> TokenScores:
    return token_level_scores


class Both(Sample):
    token_level_scores: TokenScores


@pipeline
def late_row(on: Devices | None = None, tp: int = 1) -> None:
    """A row operator behind a filter of groups."""
    actor, engine = Wide("actor", tp=tp, on=on), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=4))
    score = integer_match(sample.response_text, sample.answer, sample.response_mask)
    kept = keep_mixed(Both(**vars(sample), token_level_scores=score.token_level_scores), score.token_level_scores, sample.uid)
    scores = shaped_after(kept.token_level_scores) if on is None and tp == 1 else kept.token_level_scores
    ready = form_batch(Both(**{**vars(kept), "token_level_scores": scores}), prompts=4)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    adv = group_mean(shape_rewards(ready.token_level_scores), ready.response_mask, ready.uid)
    rows = Rows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages,
    )  # fmt: skip
    trained = actor.train(policy.move, micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=64).loss(ppo_clip(0.2, 0.28)))
    policy.close(sync(trained, engine))


class Wide(Torch):
    """A worker that could be cut further, as engines on accelerators are."""

    def __init__(self, name: str, *, tp: int = 1, on: Devices | None = None) -> None:
        super().__init__(name, on=on)
        self.tp_size = tp


def test_a_row_operator_behind_one_of_groups_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="`shaped_after` runs on single trajectories as they land, but reads what `keep_mixed` makes"):
        GraphView(late_row()).check_runnable()


def test_devices_and_tensor_parallel_ranks_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="worker `actor` asks for the devices `gpus`; a run starts its workers as CPU processes"):
        GraphView(late_row(on=Devices("gpus", count=1))).check_runnable()
    with pytest.raises(UsageError, match="worker `actor` asks for tp=2;"):
        GraphView(late_row(tp=2)).check_runnable()


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


@pipeline
def twice(first: int = 4) -> None:
    """Two evaluations, every 4 and every 6 versions."""
    actor, engine = Torch("actor"), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=4)), prompts=4)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)
    adv = group_mean(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid)
    rows = Rows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask), advantages=adv.advantages,
    )  # fmt: skip
    trained = actor.train(policy.move, micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=64).loss(ppo_clip(0.2, 0.28)))
    policy.close(sync(trained, engine))
    for every in (first, 6):
        engine.evaluate(policy.served, dataset("digits.parquet", split="test", tokenizer="tiny"), reward=integer_match, every=every)


def test_which_evaluations_are_due_by_a_version() -> None:
    view = GraphView(twice())
    assert [n.params["every"] for n in view.sinks_due([0], at_the_end=False)] == [4, 6]
    assert [n.params["every"] for n in view.sinks_due([8], at_the_end=False)] == [4]
    assert [n.params["every"] for n in view.sinks_due([2, 18], at_the_end=False)] == [6]  # 2 has none, and was passed over
    assert view.sinks_due([2], at_the_end=False) == []
    assert [n.params["every"] for n in view.sinks_due([7], at_the_end=True)] == [4, 6]


def test_an_evaluation_of_every_0_versions_never_runs() -> None:
    view = GraphView(twice(first=0))
    view.check_runnable()
    assert [n.params["every"] for n in view.sinks_due([0, 12], at_the_end=True)] == [6]
    assert not any(node.sink for node in view.batch)
    assert schedule(view, Options()).eval_every == 6


def test_a_best_checkpoint_needs_an_evaluation_that_runs() -> None:
    assert schedule(GraphView(grpo(eval_every=5)), Options(keep_best=True)).keep_best
    with pytest.raises(UsageError, match=r"^--keep-best: `engine\.evaluate` never runs \(--eval-every 0\), .* give --eval-every "):
        schedule(GraphView(grpo(eval_every=0)), Options(keep_best=True))
