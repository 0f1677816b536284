"""CISPO: grpo.py with the importance weight clipped, not the token: none loses its gradient.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘

MiniMax 2025, MiniMax-M1 (arXiv:2506.13585). With one optimizer step a batch every weight is 1: here are two.
"""

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import cispo as cispo_loss
from operators.loss import entropy_bonus
from operators.reward import shape_rewards
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def cispo(options: Options = Options(mini_batches=2), clip_low: float = 1.0, clip_high: float = 4.0) -> None:
    actor, engine, policy = workers(options)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    adv = grpo(rewards, ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(cispo_loss(clip_low, clip_high), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
