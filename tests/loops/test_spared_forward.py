"""Old log-probs that the training forward stands in for: the weights of a real step do not tell the difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from run_cases import Run
from safetensors.torch import load_file

PIPELINE = '''
from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.dataset import dataset
from operators.engines import Embedded
from operators.trainers import Torch
from operators.fields import Advantages, OldLogProbs
from operators.loss import entropy_bonus, ppo_clip
from operators.records import ModelRows, PpoRows
from operators.reward import integer_match, shape_rewards
from operators.rows import micro_pack, pad, shard
from operators.sync import sync
from rlflow import Feedback, operator, pipeline


class TrainRows(ModelRows, PpoRows):
    pass


@operator(per="row")
def looked_at(advantages: Advantages, old_log_probs: OldLogProbs) -> Advantages:
    """Reads the log-probs, and leaves the advantages as they are."""
    return advantages.clone()


@pipeline
def one_step(forced: bool = False) -> None:
    actor, engine = Torch("actor", lr=0.01, dp=2), Embedded("engine", max_new_tokens=2)
    policy = Feedback("policy", init=actor.load())
    ready = form_batch(engine.rollout(policy.served, dispatch(dataset("digits.parquet", tokenizer="tiny"), n=8)), prompts=4)
    score = integer_match(ready.response_text, ready.answer, ready.response_mask)
    advantages = grpo(shape_rewards(score.token_level_scores), ready.response_mask, ready.uid).advantages
    old = actor.log_probs(policy.current, ready.input_ids, ready.position_ids, ready.attention_mask)
    if forced:
        advantages = looked_at(advantages, old)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=old, advantages=advantages,
    )
    micro = micro_pack(shard(pad(rows, multiple=2), on=actor), max_tokens=64)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip(), entropy_bonus(0.1))), engine))
'''


def test_the_weights_are_those_of_a_step_that_was_given_the_field(start_run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "one_step.py"
    file.write_text(PIPELINE)
    weights, hops = [], []
    for flags in ((), ("--forced",)):
        run = start_run(str(file), "--steps", "1", "--seed", "3", *flags)
        code, _, err = run.end(240)
        assert code == 0, err
        hops.append(run.steps()[0]["seconds_by_hop"].keys())
        weights.append(load_file(run.folder / "checkpoints" / "step-000001" / "actor" / "model.safetensors"))
    spared, scored = weights
    assert ["actor.log_probs" in names for names in hops] == [False, True]
    assert max(float((spared[name] - tensor).abs().max()) for name, tensor in scored.items()) <= 1e-6
