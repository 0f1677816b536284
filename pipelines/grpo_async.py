"""GRPO while the engine goes on sampling: grpo.py on rows of up to `max_lag` versions ago, with an importance weight each.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → weigh, mask → train
             ↑    (k - lag)                                          (k)                         │
             └────────────────────────────────────── sync ──────────────────────────────────────┘

How far engine and trainer, old versions and new ones are apart is in metrics.jsonl: `mismatch_metrics/*`.
weigh: advantages times π_k / π_rollout, a token, a row or a row's geometric mean, at most `cap` (truncated importance sampling).
"""

from typing import Annotated, Literal

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.mismatch import importance_weighted
from operators.mismatch_metrics import mismatch_metrics
from operators.reward import shape_rewards
from operators.stale import mask_stale
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import Stale, pipeline


@pipeline
def grpo_async(
    options: Options = Options(),
    max_lag: Annotated[int, "versions that a row may be old"] = 2,
    stale: Annotated[Stale, "what becomes of groups that are too slow for that"] = "wait",
    level: Annotated[Literal["token", "sequence", "geometric"], "what an importance weight is of"] = "token",
    cap: Annotated[float, "an importance weight at most"] = 2.0,
) -> None:
    actor, engine, policy = workers(options, max_lag=max_lag, stale=stale)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    adv = grpo(rewards, ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    mismatch_metrics(policy.current, old, ready.rollout_log_probs, ready.response_mask, ready.token_versions)
    weighed = importance_weighted(adv.advantages, old, ready.rollout_log_probs, ready.response_mask, level=level, high=cap)
    young = ready.response_mask
    if stale == "mask":  # the baselines above go by all tokens, the losses by those that are young enough
        young = mask_stale(policy.current, young, ready.token_versions)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=weighed, response_mask=young), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
