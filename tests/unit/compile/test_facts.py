"""What the passes find out about two small loops, against values written down by hand."""

from __future__ import annotations

import pytest
from small_loops import filtered, penalised

from rlflow import Plan
from rlflow.compile.facts import Facts, RowSet
from rlflow.compile.ir import Dim, Field, Node
from rlflow.compile.verify import verify


def node(plan: Plan, name: str) -> Node:
    return next(n for n in plan.graph.nodes if n.name == name)


def field(plan: Plan, writer: str, name: str) -> Field:
    return next(plan.graph.fields[out] for out in node(plan, writer).outs if plan.graph.fields[out].name == name)


def spec(plan: Plan, writer: str, name: str) -> str:
    found = plan.facts.specs[field(plan, writer, name).id]
    return f"{found} {found.role}"


def rows(plan: Plan, writer: str, name: str) -> RowSet:
    found = plan.facts.rows_of(field(plan, writer, name).id)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("writer", "name", "expected"),
    [
        ("dataset", "prompt_ids", "i64[P, Q] tokens"),
        ("dispatch", "uid", "i64[8*P] group"),
        ("engine.rollout", "rollout_log_probs", "f32[8*P, S - 1] log_prob(served)"),
        ("form_batch", "rollout_log_probs", "f32[512, S - 1] log_prob(served)"),
        ("shaping", "shaping", "f32[512, S - 1] reward(shaped)"),
        ("actor.log_probs", "old", "f32[512, S - 1] log_prob(current)"),
        ("reference.log_probs", "ref", "f32[512, S - 1] log_prob(frozen)"),
        ("micro_pack", "old_log_probs", "f32[b2, S - 1] log_prob(current)"),
        ("dataset#2", "prompt_ids", "i64[P2, Q2] tokens"),
    ],
)
def test_specs(writer: str, name: str, expected: str) -> None:
    assert spec(penalised(), writer, name) == expected


def test_rows_change_where_a_row_operator_stands() -> None:
    plan = penalised(dp=2)
    chain = list(plan.facts.ancestors(rows(plan, "micro_pack", "advantages")))
    assert [(r.how, r.scope, str(r.size)) for r in chain] == [
        ("pack", "micro", "b2"),
        ("shard", "shard", "b"),
        ("permute", "batch", "512"),
        ("pad", "batch", "512"),
        ("form", "batch", "512"),
        ("fresh", "stream", "8*P"),  # a rollout's rows are leaves, no longer the trajectories asked for
        ("expand", "stream", "8*P"),
        ("fresh", "stream", "P"),
    ]


def test_a_filter_of_groups_leaves_whole_groups_that_the_batch_counts() -> None:
    plan = filtered()
    kept = rows(plan, "keep_mixed", "uid")
    assert (str(kept.size), kept.whole, kept.scope) == ("4*K", True, "stream")
    assert rows(plan, "form_batch", "uid").size == 64


def test_leaf_rows_of_trees_stay_unknown() -> None:
    plan = filtered(tree=True)
    assert str(rows(plan, "form_batch", "uid").size) == "B2"  # of the batch; B are those of the stream
    padded = rows(plan, "pad", "advantages")
    assert (str(padded.size), padded.multiple, padded.padded) == ("padded", 2, True)


def test_versions() -> None:
    plan = penalised()
    assert plan.facts.versions[field(plan, "grpo", "advantages").id] == (("policy", "served"),)
    assert plan.facts.versions[field(plan, "actor.log_probs", "old").id] == (("policy", "current"), ("policy", "served"))
    assert plan.facts.versions[field(plan, "dataset", "uid").id] == ()


@pytest.mark.parametrize(("kl", "kept"), [(0.0, False), (0.1, True)])
def test_the_reference_is_dead_when_the_penalty_is_off(kl: float, kept: bool) -> None:
    plan = penalised(kl=kl)
    assert {node(plan, n).id in plan.facts.needed for n in ("reference.load", "reference.log_probs")} == {kept}
    assert plan.warnings == ()


def test_a_sink_keeps_what_it_reads_alive() -> None:
    plan = penalised()
    assert {node(plan, "engine.evaluate").id, node(plan, "dataset#2").id} <= plan.facts.needed


@pytest.mark.parametrize(
    ("writer", "name", "last"),
    [
        ("engine.rollout", "response_text", "exact_match"),
        ("engine.rollout", "uid", "grpo"),
        ("engine.rollout", "input_ids", "actor.train"),
        ("actor.log_probs", "old", "actor.train"),
        ("grpo", "returns", None),
        ("engine.rollout", "rollout_log_probs", None),
        ("reference.log_probs", "ref", None),
    ],
)
def test_last_read(writer: str, name: str, last: str | None) -> None:
    plan = penalised()
    found = plan.facts.last_by_worker.get(field(plan, writer, name).id)
    assert (plan.graph.nodes[max(found.values())].name if found is not None else None) == last
    assert (field(plan, writer, name).id in plan.facts.read) == (last is not None)


def test_sites() -> None:
    plan = penalised(kl=0.1)
    assert {n.name: plan.facts.site[n.id] for n in plan.graph.nodes if not n.is_record} == {
        "actor.load": "actor",
        "dataset": "engine.rollout",
        "dispatch": "engine.rollout",
        "engine.rollout": "engine.rollout",
        "form_batch": "controller",
        "exact_match": "host",
        "shaping": "host",
        "grpo": "host",
        "actor.log_probs": "actor",
        "reference.load": "reference",
        "reference.log_probs": "reference",
        "pad": "host",  # this catalogue gives no index=
        "rebalance": "host",
        "shard": "host",
        "micro_pack": "host",
        "actor.train": "actor",
        "sync": "actor",
        "dataset#2": "engine.rollout",
        "engine.evaluate": "engine.rollout",
    }


def test_rewards_on_the_stream_run_beside_the_rollout() -> None:
    plan = filtered()
    assert plan.facts.site[node(plan, "exact_match").id] == "engine.rollout"
    assert plan.facts.site[node(plan, "keep_mixed").id] == "host"  # of whole groups, once all their trajectories have landed
    assert plan.facts.site[node(plan, "shaping").id] == "host"


def test_verify_finds_a_table_that_points_at_nothing() -> None:
    graph = penalised().graph
    with pytest.raises(AssertionError, match="field 999 is out of range"):
        verify(graph, Facts(versions={999: ()}))
    with pytest.raises(AssertionError, match="node 999 is out of range"):
        verify(graph, Facts(site={999: "actor"}))
    with pytest.raises(AssertionError, match="row set 0 is made of a later one"):
        verify(graph, Facts(rowsets=[RowSet(id=0, scope="batch", size=Dim.of(1), unit="B", made_by=0, parent=0)]))


def test_letters_of_the_graph_are_new() -> None:
    facts = Facts()
    assert [str(facts.letter(name)) for name in ("B", "B2", "B", "B", "B2")] == ["B", "B2", "B3", "B4", "B22"]
