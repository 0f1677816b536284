"""REINFORCE++: grpo.py with one answer a prompt and no group: the batch, whitened, is the baseline.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘

Hu 2025 (arXiv:2501.03262).
"""

from operators.advantage import reinforce_plus_plus
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import shape_rewards
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def reinforce_pp(options: Options = Options(prompts=256, group_size=1), gamma: float = 1.0) -> None:
    actor, engine, policy = workers(options)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    adv = reinforce_plus_plus(rewards, ready.response_mask, gamma=gamma)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
