"""GRPO on any task of reasoning-gym, one turn each: questions made by its generator, answers scored by its scorer.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘
"""

from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.gym import gym_dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.reward import reasoning_gym_reward, shape_rewards
from operators.sync import sync
from pipelines.parts import Common, balanced, micro_batches, train_rows, workers
from rlflow import pipeline


@pipeline
def reasoning(
    common: Common = Common(entropy=0.05, max_new_tokens=1), task: str = "chain_sum",
    options: str = '{"max_terms": 2, "max_digits": 1}', size: int = 150, lower: bool = True,
) -> None:  # fmt: skip
    actor, engine, policy = workers(common)

    question = gym_dataset(task, tokenizer=common.model, size=size, options=options, lower=lower)
    ready = form_batch(engine.rollout(policy.served, dispatch(question, n=common.group_size)), prompts=common.prompts)
    score = reasoning_gym_reward(ready.response_text, ready.answer, ready.response_mask)
    adv = grpo_advantage(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = balanced(train_rows(ready, old_log_probs=old, advantages=adv.advantages), common)
    micro = micro_batches(rows, actor, common)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(common.entropy)))
    policy.close(sync(trained, engine))
    held_out = gym_dataset(task, split="test", tokenizer=common.model, size=size, options=options, lower=lower)
    engine.evaluate(
        policy.served, held_out, reward=reasoning_gym_reward, every=common.eval_every, samples=common.eval_samples,
        temperature=common.eval_temperature,
    )  # fmt: skip
