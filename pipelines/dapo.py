"""DAPO: grpo.py with dynamic sampling, a higher upper clip, a soft penalty on answers that come near the limit, and no KL.

dataset → dispatch → rollout → reward → keep mixed → form batch → overlong penalty → advantage → old log-probs → train
             ↑                             └── a group whose answers are all right, or all wrong, is sampled in vain: refilled    │
             └────────────────────────────────────────────────── sync ───────────────────────────────────────────────────────────┘

Yu et al. 2025 (arXiv:2503.14476). The filter reads what the verifier said, the estimator what the penalty made of it. With
`--overlong-mask` answers that were cut off count in the baseline of their group and are not trained (its section 3.4).
"""

from typing import Annotated

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.fields import AttentionMask, IsTruncated, TokenCount
from operators.filters import keep_mixed, mask_overlong
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, Scores, TreeRows
from operators.reward import shape_rewards
from operators.shaping import overlong_penalty
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


class Judged(ModelRows, TreeRows, Scores):
    """What is kept or dropped, a group at a time."""

    attention_mask: AttentionMask
    is_truncated: IsTruncated


@pipeline
def dapo(
    options: Options = Options(prompts=16, group_size=16, mini_batches=2, max_new_tokens=3),
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    overlong_buffer: Annotated[TokenCount, "the last tokens of an answer that are paid for, of --max-new-tokens"] = 1,
    penalty: Annotated[float, "reward that an answer of full length loses"] = 1.0,
    overlong_mask: Annotated[bool, "do not train answers that were cut off"] = False,
) -> None:
    actor, engine, policy = workers(options)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    sample = engine.rollout(policy.served, prompt)
    score = options.reward(sample.response_text, sample.answer, sample.response_mask)
    judged = Judged(
        input_ids=sample.input_ids, position_ids=sample.position_ids, attention_mask=sample.attention_mask,
        response_mask=sample.response_mask, is_pad=sample.is_pad, is_truncated=sample.is_truncated, uid=sample.uid,
        traj_uid=sample.traj_uid, token_level_scores=score.token_level_scores, is_correct=score.is_correct,
    )  # fmt: skip
    mixed = keep_mixed(judged, score.token_level_scores, sample.uid, sample.response_mask)
    ready = form_batch(mixed, prompts=options.prompts)
    rewards = overlong_penalty(
        shape_rewards(ready.token_level_scores), ready.response_mask, limit=options.max_new_tokens, buffer=overlong_buffer, penalty=penalty
    )
    adv = grpo(rewards, ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    trained_mask = mask_overlong(ready.response_mask, ready.is_truncated) if overlong_mask else ready.response_mask

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages, response_mask=trained_mask), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(clip_low, clip_high), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
