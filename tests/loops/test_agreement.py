"""What the engine said it sampled with is what the trainer finds: one policy, two forwards, after every sync."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from run_cases import Run

PIPELINE = '''
from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.trainers import Torch
from operators.environment import HigherLower
from operators.fields import Advantages, OldLogProbs, ResponseMask, RolloutLogProbs
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from rlflow import Feedback, operator, pipeline


class TrainRows(ModelRows, PpoRows):
    pass


@operator(per="row", corrects=("engine",))
def agreed(advantages: Advantages, old: OldLogProbs, rollout: RolloutLogProbs, mask: ResponseMask) -> Advantages:
    gap = (old - rollout).abs().where(mask, old.new_zeros(()))
    assert mask.any() and (rollout.where(mask, rollout.new_tensor(-1.0)) < 0).all(), "nothing was sampled"
    assert gap.max() < BOUND, f"engine and trainer differ by {gap.max()}"
    return advantages.clone()


@pipeline
def agreement(turns: int = 1) -> None:
    actor, engine = Torch("actor", lr=0.01), Embedded("engine", max_new_tokens=2)
    policy = Feedback("policy", init=actor.load())
    prompt = dispatch(dataset("guess.parquet", tokenizer="tiny"), n=4)
    ready = form_batch(engine.rollout_turns(policy.served, prompt, environment=HigherLower(turns=turns)), prompts=4)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)
    adv = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid)
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    checked = agreed(adv.advantages, old, ready.rollout_log_probs, ready.response_mask)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=checked,
    )
    micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=4096)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(0.5))), engine))
'''


def _pipeline(folder: Path, bound: str) -> str:
    file = folder / "agreement.py"
    file.write_text(PIPELINE.replace("BOUND", bound))
    return str(file)


def test_engine_and_trainer_give_the_same_log_probs_over_several_versions_and_turns(start_run: Callable[..., Run], tmp_path: Path) -> None:
    run = start_run(_pipeline(tmp_path, "1e-4"), "--steps", "5", "--turns", "3")
    code, _, err = run.end(240)
    assert code == 0, err
    assert len(run.steps()) == 5


def test_the_comparison_can_fail(start_run: Callable[..., Run], tmp_path: Path) -> None:
    run = start_run(_pipeline(tmp_path, "-1.0"), "--steps", "1")
    code, _, err = run.end(240)
    assert code == 1
    assert "engine and trainer differ by" in err
