"""Which forward passes a step has: worked out by hand for each set of losses and flags, and compared with the plan.

steps: updates x mini-batches. Passes beside the forward of training:
`old` actor.log_probs, `ref` reference.log_probs, `values` critic.values, `-` none. By hand:

old      read by ppo_clip, which may take it from the training forward when a batch is one optimizer step; by truncated_importance, which
         may not; by nobody where the rollout's own log-probs are the anchor
ref      read by kl_penalty, unless its weight is 0
values   read by gae always; by value_clip, which may take them from the forward of a single step
refused  rows that lag, an anchor of version k, and nothing that weighs the difference
"""

from __future__ import annotations

from dead_hops import COLUMNS, actor_loop, critic_loop, markdown

from rlflow import Plan

TABLE = """
| steps | max_lag | correction | ppo_clip | + entropy | + kl_penalty(0) | + kl_penalty(0.1) | critic, gae | critic, grpo |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 1 x 1 | 0 | none | - | - | - | ref | values | - |
| 1 x 1 | 0 | truncated_importance | old | old | old | old, ref | old, values | old |
| 1 x 1 | 0 | anchor_on_rollout | - | - | - | ref | values | - |
| 1 x 1 | 1 | none | RLF307 | RLF307 | RLF307 | RLF307 | RLF307 | RLF307 |
| 1 x 1 | 1 | truncated_importance | old | old | old | old, ref | old, values | old |
| 1 x 1 | 1 | anchor_on_rollout | - | - | - | ref | values | - |
| 2 x 1 | 0 | none | old | old | old | old, ref | old, values | old, values |
| 2 x 1 | 0 | truncated_importance | old | old | old | old, ref | old, values | old, values |
| 2 x 1 | 0 | anchor_on_rollout | - | - | - | ref | values | values |
| 2 x 1 | 1 | none | RLF307 | RLF307 | RLF307 | RLF307 | RLF307 | RLF307 |
| 2 x 1 | 1 | truncated_importance | old | old | old | old, ref | old, values | old, values |
| 2 x 1 | 1 | anchor_on_rollout | - | - | - | ref | values | values |
| 1 x 2 | 0 | none | old | old | old | old, ref | old, values | old, values |
| 1 x 2 | 0 | truncated_importance | old | old | old | old, ref | old, values | old, values |
| 1 x 2 | 0 | anchor_on_rollout | - | - | - | ref | values | values |
| 1 x 2 | 1 | none | RLF307 | RLF307 | RLF307 | RLF307 | RLF307 | RLF307 |
| 1 x 2 | 1 | truncated_importance | old | old | old | old, ref | old, values | old, values |
| 1 x 2 | 1 | anchor_on_rollout | - | - | - | ref | values | values |
"""


def test_the_table_of_forward_passes() -> None:
    assert markdown().splitlines() == TABLE.strip().splitlines()
    assert len(COLUMNS) == 6


def dropped(plan: Plan) -> dict[str, str]:
    return {plan.graph.nodes[node].name: why for node, why in plan.facts.dropped.items()}


def test_a_dropped_call_says_why_and_warns_of_nothing() -> None:
    plan = actor_loop()
    assert plan.warnings == ()
    assert dropped(plan) == {
        "actor.log_probs": "`actor.train` takes `old_log_probs` from its own forward: a batch is one optimizer step",
        "reference.load": "no call that the step needs reads its result",
        "reference.log_probs": "no call that the step needs reads its result",
    }
    train = next(node.id for node in plan.graph.nodes if node.losses)
    assert plan.facts.from_forward == {train: {"old_log_probs": "log_probs"}}


def test_a_call_that_somebody_else_reads_is_read_by_the_losses_too() -> None:
    plan = actor_loop(correction="truncated_importance")
    assert plan.facts.from_forward == {}
    (old,) = (field for field in plan.fields if field.name == "old")
    assert old.readers == ("truncated_importance", "actor.train")


def test_policy_and_critic_are_judged_apart() -> None:
    assert set(dropped(critic_loop())) == {"actor.log_probs"}
    assert set(dropped(critic_loop(estimator="grpo"))) == {"actor.log_probs", "critic.values"}
