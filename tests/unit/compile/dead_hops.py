"""A loop with every forward pass that a step may have, and the table of those that remain: `python tests/unit/compile/dead_hops.py`.

All of them are called, whatever the flags; what no loss, operator or next step reads is dropped by the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from operators.advantage import gae, grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.loss import entropy_bonus, kl_penalty, ppo_clip, value_clip
from operators.mismatch import anchor_on_rollout, truncated_importance
from operators.records import KlRows, ModelRows, PpoRows, ValueRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from operators.trainers import Torch, TorchCritic
from rlflow import CheckFailed, Feedback, Plan, pipeline

PASSES = {"actor.log_probs": "old", "reference.log_probs": "ref", "critic.values": "values"}  # call -> how the table calls it


class ActorRows(ModelRows, PpoRows, KlRows):
    """What the policy is trained on."""


class BothRows(ModelRows, PpoRows, ValueRows):
    """What policy and critic are trained on."""


@pipeline
def actor_loop(
    updates: int = 1, mini_batches: int = 1, max_lag: int = 0, correction: str = "none", entropy: float = 0.0, kl: float = 0.0
) -> None:
    actor, engine, reference = Torch("actor"), Embedded("engine"), Torch("reference")
    policy = Feedback("policy", init=actor.load(), max_lag=max_lag)
    ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=8)), prompts=32)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)
    advantages = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid).advantages
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    ref = reference.log_probs(reference.load(), ready.input_ids, ready.position_ids, ready.attention_mask)
    if correction == "truncated_importance":
        advantages = truncated_importance(advantages, old, ready.rollout_log_probs, ready.response_mask)
    if correction == "anchor_on_rollout":
        old = anchor_on_rollout(ready.rollout_log_probs)
    rows = ActorRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, ref_log_probs=ref, advantages=advantages,
    )  # fmt: skip
    rows = shard(rebalance(pad(rows, multiple=mini_batches), pieces=4, mini_batches=mini_batches), on=actor, mini_batches=mini_batches)
    objective = micro_pack(rows, max_tokens=4096).loss(ppo_clip(), entropy_bonus(entropy), kl_penalty(kl))
    policy.close(sync(actor.train(policy.move, objective, updates=updates), engine))


@pipeline
def critic_loop(updates: int = 1, mini_batches: int = 1, max_lag: int = 0, correction: str = "none", estimator: str = "gae") -> None:
    """estimator: gae reads the values; with grpo only the critic's loss does."""
    actor, engine, critic = Torch("actor"), Embedded("engine"), TorchCritic("critic")
    policy, baseline = Feedback("policy", init=actor.load(), max_lag=max_lag), Feedback("baseline", init=critic.load())
    ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=8)), prompts=32)
    rewards = shape_rewards(integer_match(ready.response_text, ready.answer, ready.response_mask).token_level_scores)
    values = critic.values(baseline.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    adv = gae(rewards, values, ready.response_mask) if estimator == "gae" else grpo(rewards, ready.response_mask, ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    advantages = adv.advantages
    if correction == "truncated_importance":
        advantages = truncated_importance(advantages, old, ready.rollout_log_probs, ready.response_mask)
    if correction == "anchor_on_rollout":
        old = anchor_on_rollout(ready.rollout_log_probs)
    rows = BothRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=advantages, values=values, returns=adv.returns,
    )  # fmt: skip
    rows = rebalance(pad(rows, multiple=mini_batches), pieces=4, mini_batches=mini_batches)
    for_critic = micro_pack(shard(rows, on=critic, mini_batches=mini_batches), max_tokens=4096).loss(value_clip())
    for_actor = micro_pack(shard(rows, on=actor, mini_batches=mini_batches), max_tokens=4096).loss(ppo_clip())
    baseline.close(critic.train(baseline.move, for_critic, updates=updates))
    policy.close(sync(actor.train(policy.move, for_actor, updates=updates), engine))


COLUMNS: dict[str, Callable[..., Plan]] = {
    "ppo_clip": actor_loop,
    "+ entropy": lambda **flags: actor_loop(entropy=0.1, **flags),
    "+ kl_penalty(0)": lambda **flags: actor_loop(entropy=0.1, kl=0.0, **flags),
    "+ kl_penalty(0.1)": lambda **flags: actor_loop(entropy=0.1, kl=0.1, **flags),
    "critic, gae": critic_loop,
    "critic, grpo": lambda **flags: critic_loop(estimator="grpo", **flags),
}
STEPS = ((1, 1), (2, 1), (1, 2))  # updates x mini-batches
CORRECTIONS = ("none", "truncated_importance", "anchor_on_rollout")


def remaining(make: Callable[..., Plan], updates: int, mini_batches: int, max_lag: int, correction: str) -> str:
    """The forward passes beside that of training, or how the program is refused."""
    try:
        plan = make(updates=updates, mini_batches=mini_batches, max_lag=max_lag, correction=correction)
    except CheckFailed as refused:
        return ", ".join(d.code for d in refused.diagnostics)
    needed = {node.name for node in plan.graph.nodes if node.id in plan.facts.needed}
    return ", ".join(short for name, short in PASSES.items() if name in needed) or "-"


def markdown() -> str:
    """The table, a line a combination of flags, a column a set of losses."""
    head = ["steps", "max_lag", "correction", *COLUMNS]
    lines = [head, ["---"] * len(head)]
    for (updates, mini_batches), max_lag, correction in product(STEPS, (0, 1), CORRECTIONS):
        cells = [remaining(make, updates, mini_batches, max_lag, correction) for make in COLUMNS.values()]
        lines.append([f"{updates} x {mini_batches}", str(max_lag), correction, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(markdown())
