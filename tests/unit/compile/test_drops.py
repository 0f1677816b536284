"""Where columns are read last, in which process, and freed; what a filter frees."""

from __future__ import annotations

import pytest
from dead_hops import actor_loop
from small_loops import filtered, penalised

from pipelines.ppo import ppo
from rlflow import Plan


def id_of(plan: Plan, writer: str, name: str) -> int:
    node = next(n for n in plan.graph.nodes if n.name == writer)
    return next(out for out in node.outs if plan.graph.fields[out].name == name)


def names(plan: Plan, fields: tuple[int, ...]) -> set[str]:
    return {f"{plan.graph.writer(field).name}.{plan.graph.fields[field].name}" for field in fields}


def test_every_process_has_a_last_read_of_its_own() -> None:
    plan = ppo()
    last = plan.facts.last_by_worker[id_of(plan, "engine.rollout", "response_mask")]
    assert {process: plan.graph.nodes[node].name for process, node in last.items()} == {
        "host": "gae",
        "critic": "critic.train",
        "actor": "actor.train",
    }


@pytest.mark.parametrize(
    ("call", "freed"),
    [
        ("integer_match", {"engine.rollout.response_text", "engine.rollout.answer"}),
        ("shape_rewards", {"integer_match.token_level_scores"}),
        ("gae", {"shape_rewards.rewards"}),
        ("critic.values", {"engine.rollout.attention_mask"}),
        ("critic.train", {"critic.values.values", "gae.returns"}),
        ("actor.train", {"gae.advantages"} | {f"engine.rollout.{n}" for n in ("input_ids", "position_ids", "response_mask", "is_pad")}),
    ],
)
def test_a_column_is_freed_after_the_last_of_them(call: str, freed: set[str]) -> None:
    plan = ppo()
    node = next(n.id for n in plan.graph.nodes if n.name == call)
    assert names(plan, plan.facts.frees[node]) == freed


def test_what_the_forward_stands_in_for_is_neither_read_nor_freed() -> None:
    spared, scored = actor_loop(), actor_loop(updates=2)
    assert id_of(spared, "actor.log_probs", "old") not in spared.facts.last_by_worker
    train = next(n.id for n in scored.graph.nodes if n.losses)
    assert "actor.log_probs.old" in names(scored, scored.facts.frees[train])
    assert "engine.rollout.attention_mask" not in {name for fields in spared.facts.frees.values() for name in names(spared, fields)}


def test_a_field_that_nobody_reads_is_never_freed_as_it_never_leaves_its_writer() -> None:
    plan = penalised()
    freed = {name for fields in plan.facts.frees.values() for name in names(plan, fields)}
    assert not {"grpo.returns", "engine.rollout.rollout_log_probs", "reference.log_probs.ref"} & freed


def test_a_filter_frees_the_dropped_rows_of_all_that_it_is_given() -> None:
    plan = filtered()
    keep_mixed = next(n.id for n in plan.graph.nodes if n.name == "keep_mixed")
    assert {node: names(plan, fields) for node, fields in plan.facts.filtered.items()} == {
        keep_mixed: {
            "engine.rollout.input_ids",
            "engine.rollout.response_mask",
            "engine.rollout.uid",
            "exact_match.token_level_scores",
        }
    }
    assert penalised().facts.filtered == {}


def test_the_tables_can_be_dumped_and_read_back() -> None:
    plan = actor_loop(kl=0.1)
    assert "actor: actor.train" in plan.dump("drops")
    assert Plan.from_json(plan.to_json()).facts == plan.facts
