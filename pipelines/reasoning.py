"""GRPO on any task of reasoning-gym, one turn each: questions made by its generator, answers scored by its scorer.

dataset → dispatch → rollout → form batch → reward → advantage → old log-probs → train
             ↑                                                                      │
             └──────────────────────────────── sync ────────────────────────────────┘
"""

from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.engines import Embedded
from operators.fields import GroupSize, PromptCount, RankCount, TokenCount
from operators.gym import gym_dataset
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import reasoning_gym_reward, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from operators.trainers import Torch
from rlflow import Feedback, pipeline


class TrainRows(ModelRows, PpoRows):
    """What the forward and the losses read."""


@pipeline
def reasoning(
    task: str = "chain_sum", options: str = '{"max_terms": 2, "max_digits": 1}', size: int = 150, lower: bool = True, model: str = "tiny",
    prompts: PromptCount = 32, group_size: GroupSize = 8, dp: RankCount = 1, engines: int = 1, lr: float = 1e-3, entropy: float = 0.05,
    max_tokens: TokenCount = 16_384, max_new_tokens: int = 1, eval_every: int = 10,
) -> None:  # fmt: skip
    actor = Torch("actor", model=model, dp=dp, lr=lr)
    engine = Embedded("engine", model=model, max_new_tokens=max_new_tokens, replicas=engines)
    policy = Feedback("policy", init=actor.load())

    question = gym_dataset(task, tokenizer=model, size=size, options=options, lower=lower)
    ready = form_batch(engine.rollout(policy.served, dispatch(question, n=group_size)), prompts=prompts)
    score = reasoning_gym_reward(ready.response_text, ready.answer, ready.response_mask)
    adv = grpo_advantage(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages,
    )  # fmt: skip
    rows = rebalance(pad(rows, multiple=dp), pieces=4 * dp)
    micro = micro_pack(shard(rows, on=actor), max_tokens=max_tokens)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(entropy)))
    policy.close(sync(trained, engine))
    held_out = gym_dataset(task, split="test", tokenizer=model, size=size, options=options, lower=lower)
    engine.evaluate(policy.served, held_out, reward=reasoning_gym_reward, every=eval_every)
