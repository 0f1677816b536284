"""Dr. GRPO ("done right"): grpo.py without its two biases: no deviation in the advantage, no length of an answer in the loss.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘

Liu et al. 2025 (arXiv:2503.20783): the terms of an answer are summed and divided by a constant, so that a long one weighs no less a token.
"""

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import shape_rewards
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def dr_grpo(options: Options = Options()) -> None:
    actor, engine, policy = workers(options)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    adv = grpo(rewards, ready.response_mask, ready.uid, traj_uid=ready.traj_uid, scale_by_std=False)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    loss = ppo_clip(aggregate="seq-mean-token-sum-norm", constant=float(options.max_new_tokens))
    trained = actor.train(policy.move, micro.loss(loss, entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
