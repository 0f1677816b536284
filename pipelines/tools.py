"""GRPO with a tool: the model may call a calculator, reads what it says, and answers. The environment judges.

dataset → dispatch → rollout (call, result, answer) → form batch → reward → advantage → old log-probs → train
             ↑                                                                                    │
             └──────────────────────────────────────── sync ──────────────────────────────────────┘
"""

from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.calculator import Calculator
from operators.dataset import dataset
from operators.engines import Embedded
from operators.fields import GroupSize, PromptCount, RankCount, TokenCount
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import episode_scores, integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from operators.trainers import Torch
from rlflow import Feedback, pipeline


class TrainRows(ModelRows, PpoRows):
    """What the forward and the losses read."""


@pipeline
def tools(
    data: str = "calculator.parquet", model: str = "tiny", prompts: PromptCount = 32, group_size: GroupSize = 8, calls: int = 1,
    call_reward: float = 0.1, dp: RankCount = 1, engines: int = 1, lr: float = 1e-3, entropy: float = 0.02,
    max_tokens: TokenCount = 16_384, max_new_tokens: int = 1, max_response_tokens: int = 2, eval_every: int = 10,
) -> None:  # fmt: skip
    actor = Torch("actor", model=model, dp=dp, lr=lr)
    engine = Embedded("engine", model=model, max_new_tokens=max_new_tokens, replicas=engines)
    policy = Feedback("policy", init=actor.load())
    tool = Calculator(calls=calls, call_reward=call_reward)

    prompt = dispatch(dataset(data, tokenizer=model), n=group_size)
    sample = engine.rollout_turns(policy.served, prompt, environment=tool, max_response_tokens=max_response_tokens)
    ready = form_batch(sample, prompts=prompts)
    score = episode_scores(ready.episode_reward, ready.response_mask)
    adv = grpo_advantage(
        shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid, scale_by_std=False
    )
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages,
    )  # fmt: skip
    rows = rebalance(pad(rows, multiple=dp), pieces=4 * dp)
    micro = micro_pack(shard(rows, on=actor), max_tokens=max_tokens)
    trained = actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(entropy)))
    policy.close(sync(trained, engine))
    held_out = dataset(data, split="test", tokenizer=model)
    engine.evaluate(
        policy.served, held_out, reward=integer_match, every=eval_every, environment=tool, max_response_tokens=max_response_tokens
    )
