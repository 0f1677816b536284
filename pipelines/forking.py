"""GRPO on trees: multiturn.py, in which a trajectory forks after its first guess, and each leaf is a row.

dataset → dispatch → rollout (guess, reply, fork ...) → form batch → reward → advantage → old log-probs → train
             ↑            └── leaf 0, leaf 1, ...     a leaf each        over trajectories              │
             └────────────────────────────────────────── sync ──────────────────────────────────────────┘
"""

from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.environment import HigherLower
from operators.fields import GroupSize, PromptCount, RankCount, TokenCount
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows, TreeRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, rebalance, shard
from operators.sync import sync
from operators.trainers import Torch
from rlflow import Feedback, RowWeight, pipeline


class TrainRows(ModelRows, PpoRows, TreeRows):
    """What the forward and the losses read."""


@pipeline
def forking(
    data: str = "guess.parquet", model: str = "tiny", prompts: PromptCount = 32, group_size: GroupSize = 6, branches: int = 2,
    turns: int = 4, row_weight: RowWeight = "trajectory", dp: RankCount = 1, engines: int = 1, lr: float = 1e-3, entropy: float = 0.05,
    max_tokens: TokenCount = 16_384, max_new_tokens: int = 1, eval_every: int = 10,
) -> None:  # fmt: skip
    actor = Torch("actor", model=model, dp=dp, lr=lr)
    engine = Embedded("engine", model=model, max_new_tokens=max_new_tokens, replicas=engines)
    policy = Feedback("policy", init=actor.load())
    game = HigherLower(turns=turns)

    prompt = dispatch(dataset(data, tokenizer=model), n=group_size)
    sample = engine.rollout_tree(policy.served, prompt, environment=game, forks=(1, branches))
    ready = form_batch(sample, prompts=prompts)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)  # of the last guess of each leaf
    adv = grpo_advantage(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages, uid=ready.uid, traj_uid=ready.traj_uid,
    )  # fmt: skip
    rows = rebalance(pad(rows, multiple=dp), pieces=4 * dp)
    micro = micro_pack(shard(rows, on=actor), max_tokens=max_tokens)
    trained = actor.train(policy.move, micro.loss(ppo_clip(row_weight=row_weight), entropy_bonus(entropy)))
    policy.close(sync(trained, engine))
    engine.evaluate(policy.served, dataset(data, split="test", tokenizer=model), reward=integer_match, every=eval_every, environment=game)
