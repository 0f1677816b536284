"""GRPO on trees: multiturn.py, in which a trajectory forks after its first guess, and each leaf is a row.

dataset → dispatch → rollout (guess, reply, fork ...) → form batch → reward → advantage → old log-probs → train
             ↑            └── leaf 0, leaf 1, ...     a leaf each        over trajectories              │
             └────────────────────────────────────────── sync ──────────────────────────────────────────┘
"""

from operators.advantage import grpo as grpo_advantage
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.environment import HigherLower
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows, TreeRows
from operators.reward import shape_rewards
from operators.sync import sync
from pipelines.parts import Options, balanced, evaluate, micro_batches, workers
from rlflow import RowWeight, pipeline


class TrainRows(ModelRows, PpoRows, TreeRows):
    """What the forward and the losses read."""


@pipeline
def forking(
    options: Options = Options(data="guess.parquet", group_size=6, entropy=0.05, max_new_tokens=1), branches: int = 2, turns: int = 4,
    row_weight: RowWeight = "trajectory",
) -> None:  # fmt: skip
    actor, engine, policy = workers(options)
    game = HigherLower(turns=turns)

    prompt = dispatch(dataset(options.data, tokenizer=options.model), n=options.group_size)
    sample = engine.rollout_tree(policy.served, prompt, environment=game, forks=(1, branches))
    ready = form_batch(sample, prompts=options.prompts)
    score = options.reward(ready.response_text, ready.answer, ready.response_mask)  # of the last guess of each leaf
    adv = grpo_advantage(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid, traj_uid=ready.traj_uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)

    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=adv.advantages, uid=ready.uid, traj_uid=ready.traj_uid,
    )  # fmt: skip
    micro = micro_batches(balanced(rows, options), actor, options)
    trained = actor.train(policy.move, micro.loss(ppo_clip(row_weight=row_weight), entropy_bonus(options.entropy)))
    policy.close(sync(trained, engine))
    evaluate(engine, policy, options, environment=game)
