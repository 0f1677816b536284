"""RLOO: grpo.py, with the mean of the *other* answers to the prompt as the baseline.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘

Kool et al. 2019; Ahmadian et al. 2024 (arXiv:2402.14740).
"""

from operators.advantage import rloo as rloo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import shape_rewards
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def rloo(options: Options = Options()) -> None:
    actor, engine, policy = workers(options)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    adv = rloo_advantage(rewards, ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
