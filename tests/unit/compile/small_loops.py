"""Two loops on the catalogue of tests/messages: one with an optional penalty, one on trees with a filter."""

from __future__ import annotations

from typing import Any

from vocabulary import (
    Embedded,
    InputIds,
    KlTrainRows,
    Leaves,
    ResponseMask,
    TokenScores,
    Torch,
    TrainRows,
    TrajUid,
    Uid,
    dataset,
    dispatch,
    exact_match,
    form_batch,
    grpo,
    keep_mixed,
    kl_penalty,
    micro_pack,
    pad,
    ppo_clip,
    rebalance,
    shaping,
    shard,
    sync,
)

from rlflow import Feedback, Record, pipeline


class Scored(Record):
    input_ids: InputIds
    response_mask: ResponseMask
    token_level_scores: TokenScores
    uid: Uid


@pipeline
def penalised(kl: float = 0.0, dp: int = 1, reward: Any = exact_match) -> None:
    """The reference is always there; with kl=0 nothing reads it."""
    actor, engine, reference = Torch("actor", dp=dp), Embedded("engine"), Torch("reference")
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(dataset("train.parquet"), n=8))
    ready = form_batch(sample, prompts=64)
    score = reward(ready.response_text, ready.answer, ready.response_mask)
    adv = grpo(shaping(score.token_level_scores), ready.response_mask, ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
    ref = reference.log_probs(reference.load(), ready.input_ids, ready.response_mask)
    rows = KlTrainRows(
        input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, ref_log_probs=ref, advantages=adv.advantages
    )
    micro = micro_pack(shard(rebalance(pad(rows, multiple=dp), pieces=4), on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip(), kl_penalty(kl))), engine))
    engine.evaluate(policy.served, dataset("test.parquet"))


class ScoredLeaves(Scored):
    traj_uid: TrajUid


@pipeline
def filtered(tree: bool = False, dp: int = 2) -> None:
    """Groups whose answers are all alike are dropped before the batch is formed."""
    actor, engine = Torch("actor", dp=dp), Embedded("engine")
    policy = Feedback("policy", init=actor.load())
    prompt = dispatch(dataset("train.parquet"), n=4)
    sample = engine.rollout_tree(policy.served, prompt) if tree else engine.rollout(policy.served, prompt)
    scores = exact_match(sample.response_text, sample.answer, sample.response_mask).token_level_scores
    whose = {"traj_uid": sample.traj_uid} if isinstance(sample, Leaves) else {}
    record = ScoredLeaves if whose else Scored
    scored = record(input_ids=sample.input_ids, response_mask=sample.response_mask, token_level_scores=scores, uid=sample.uid, **whose)
    ready = form_batch(keep_mixed(scored, scores), prompts=16)
    told = {"traj_uid": ready.traj_uid} if isinstance(ready, ScoredLeaves) else {}
    adv = grpo(shaping(ready.token_level_scores), ready.response_mask, ready.uid, **told)
    old = actor.log_probs(policy.current, ready.input_ids, ready.response_mask)
    rows = TrainRows(input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=old, advantages=adv.advantages)
    micro = micro_pack(shard(pad(rows, multiple=dp), on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip())), engine))
