"""REINFORCE++: grpo.py with one answer a prompt and no group: the batch, whitened, is the baseline.

dataset → dispatch → rollout → form batch → reward → old log-probs → advantage → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘

Hu 2025 (arXiv:2501.03262). With `--kl` every token is paid for what it takes the policy away from the model that it began as.
"""

from typing import Annotated

from operators.advantage import reinforce_plus_plus
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import shape_rewards
from operators.shaping import kl_in_reward
from operators.sync import sync
from operators.trainers import Torch
from pipelines.parts import Options, balanced, evaluate, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def reinforce_pp(
    options: Options = Options(prompts=256, group_size=1),
    gamma: float = 1.0,
    kl: Annotated[float, "reward that a token loses for a nat of divergence from the model as it was; 0: off"] = 0.0,
) -> None:
    actor, engine, policy = workers(options)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    ready = form_batch(engine.rollout(policy.served, prompt), prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)
    rewards = shape_rewards(score.token_level_scores)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    if kl:
        reference = Torch("reference", model=options.model, dp=options.dp)
        ref = reference.log_probs(reference.load(), ready.input_ids, ready.position_ids, ready.attention_mask)
        rewards = kl_in_reward(rewards, old, ref, ready.response_mask, beta=kl)
    adv = reinforce_plus_plus(rewards, ready.response_mask, gamma=gamma)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), options)
    micro = micro_batches(rows, actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options)
