from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_cases import Objective, Rows, make_rows, parameters

from operators.loss import entropy_bonus, kl_penalty, ppo_clip, value_clip
from rlflow.engines.train.torch import TorchEngine
from rlflow.errors import EngineError

LENGTHS = (6, 9, 4, 8)


def objective(rows: Rows, *losses: Any, mini_batches: int = 1) -> Objective:
    size = rows.input_ids.shape[0] // mini_batches
    return Objective(losses or (ppo_clip(),), tuple((rows.take(range(j * size, (j + 1) * size)),) for j in range(mini_batches)))


def test_train_moves_the_policy_towards_the_advantages(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    engine = TorchEngine(policy_path, lr=1e-3)
    old = engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    for _ in range(5):
        engine.train(objective(replace(rows, old_log_probs=old)))
    new = engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    gain = ((new - old) * rows.advantages)[rows.response_mask]
    assert gain.mean() > 0.01


def test_train_brings_values_to_returns(critic_path: Path) -> None:
    rows = make_rows(LENGTHS)
    engine = TorchEngine(critic_path, kind="critic", lr=1e-2)
    errors = []
    for _ in range(30):
        values = engine.values(rows.input_ids, rows.position_ids, rows.attention_mask)
        errors.append(engine.train(objective(replace(rows, values=values), value_clip(10.0)))["value_clip/squared_error"])
    assert errors[-1] < 0.3 * errors[0]


def test_first_adamw_step_by_hand(policy_path: Path) -> None:
    """lr · (sign of the gradient + decay · weight): AdamW's first step, where its moments are those of one gradient."""
    engine = TorchEngine(policy_path, lr=0.01, weight_decay=0.1, eps=0.0, grad_clip=0.0, dtype="float64")
    before = parameters(engine)
    engine.train(objective(make_rows(LENGTHS, dtype=torch.float64)))
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (parameters(engine)[name] - before[name] * (1 - 0.01 * 0.1)).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01))


def test_version_and_steps(policy_path: Path) -> None:
    engine = TorchEngine(policy_path)
    engine.train(objective(make_rows(LENGTHS), mini_batches=2), updates=3)
    assert (engine.version, engine.steps) == (1, 6)


def test_schedule_follows_the_steps(policy_path: Path) -> None:
    engine = TorchEngine(policy_path, lr=1.0, warmup_steps=4)
    assert engine.train(objective(make_rows(LENGTHS), mini_batches=2))["lr"] == 0.5


def test_grad_norm_is_reported_before_clipping(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    big = replace(rows, advantages=rows.advantages * 1000)
    small, large = (TorchEngine(policy_path, grad_clip=0.1).train(objective(r))["grad_norm"] for r in (rows, big))
    assert large == pytest.approx(1000 * small, rel=1e-3)
    assert large > 0.1


def test_clipping_bounds_the_step(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    huge = replace(rows, advantages=rows.advantages * 1e6)
    ends = []
    for clip in (0.0, 1e-3):
        engine = TorchEngine(policy_path, lr=1e-3, eps=1.0, grad_clip=clip)  # eps = 1: the step is about lr · gradient
        before = parameters(engine)
        engine.train(objective(huge))
        ends.append(max(float((after - before[name]).abs().max()) for name, after in parameters(engine).items()))
    assert ends[1] <= 1.1e-6 < 1e-4 < ends[0]


def test_metrics_of_the_shipped_losses(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    metrics = TorchEngine(policy_path).train(objective(rows, ppo_clip(), kl_penalty(0.1), entropy_bonus(0.01)))
    assert set(metrics) == {
        "loss", "ppo_clip/loss", "ppo_clip/clip_fraction", "ppo_clip/ppo_kl", "ppo_clip/approx_kl", "ppo_clip/ratio", "kl_penalty/loss",
        "kl_penalty/kl", "entropy_bonus/loss", "entropy", "grad_norm", "grad_norm_max", "lr", "tokens", "rows", "steps",
    }  # fmt: skip
    assert metrics["loss"] == pytest.approx(metrics["ppo_clip/loss"] + metrics["kl_penalty/loss"] + metrics["entropy_bonus/loss"])
    assert metrics["kl_penalty/loss"] == pytest.approx(0.1 * metrics["kl_penalty/kl"])
    assert metrics["entropy_bonus/loss"] == pytest.approx(-0.01 * metrics["entropy"])
    assert 0 < metrics["entropy"] < 2.78  # log 16


def test_on_policy_ratio_is_one_also_at_a_temperature(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    engine = TorchEngine(policy_path, temperature=0.6)
    old = engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    metrics = engine.train(objective(replace(rows, old_log_probs=old)))
    assert metrics["ppo_clip/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ppo_clip/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["ppo_clip/clip_fraction"] == 0


def test_L17_junk_outside_the_mask_does_not_reach_the_weights(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    outside = ~rows.response_mask
    junk = {name: torch.where(outside, float("nan"), getattr(rows, name)) for name in ("old_log_probs", "advantages", "ref_log_probs")}
    ends = []
    for given in (rows, replace(rows, **junk)):
        engine = TorchEngine(policy_path)
        engine.train(objective(given, ppo_clip(), kl_penalty(0.1)))
        ends.append(parameters(engine))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


# --- what is not stepped --------------------------------------------------------------------------------------------------------------
def test_nan_loss_names_step_mini_batch_and_row_and_steps_nothing(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    advantages = rows.advantages.clone()
    advantages[3, 2] = float("nan")
    engine = TorchEngine(policy_path)
    engine.train(objective(rows))
    before = parameters(engine)
    bad = Objective((ppo_clip(),), ((rows.take([0]), replace(rows, advantages=advantages).take([1, 3])),))
    with pytest.raises(EngineError) as error:
        engine.train(bad)
    assert str(error.value) == (
        "training failed (version 1, update 0, mini-batch 0 of 1, optimizer step 1); nothing was stepped: "
        "micro-batch 1: ppo_clip is not finite in row 1 (uid 1, traj_uid 1)"
    )
    assert all(torch.equal(after, before[name]) for name, after in parameters(engine).items())
    assert (engine.version, engine.steps) == (1, 1)


def test_infinite_gradient_of_a_finite_loss_names_the_rows_and_steps_nothing(policy_path: Path) -> None:
    @dataclass(frozen=True)
    class Cliff:
        """Finite at log_probs = its own value, with an infinite slope: sqrt at 0."""

        denominator = "tokens"
        active = True

        def __call__(self, forward: Any, rows: Any) -> Tensor:
            distance = (forward.log_probs - forward.log_probs.detach()).clamp(min=0)
            steep = torch.where((rows.uid == 1)[:, None], distance, distance + 1).sqrt()
            return torch.where(rows.response_mask, steep, 0.0)

    rows = make_rows(LENGTHS)
    engine = TorchEngine(policy_path)
    before = parameters(engine)
    where = r"the gradient is not finite .*nothing was stepped: micro-batch 1, among row 0 \(uid 1, traj_uid 0\), row 1"
    with pytest.raises(EngineError, match=where):
        engine.train(Objective((Cliff(),), ((rows.take([0, 1]), rows.take([2, 3])),)))
    assert all(torch.equal(after, before[name]) for name, after in parameters(engine).items())


def test_error_of_an_earlier_mini_batch_leaves_no_gradient_behind(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    engine, fresh = TorchEngine(policy_path), TorchEngine(policy_path)
    with pytest.raises(EngineError):
        engine.train(Objective((ppo_clip(),), ((rows.take([0]), replace(rows, advantages=rows.advantages * float("nan")).take([1])),)))
    engine.train(objective(rows))
    fresh.train(objective(rows))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(engine.named_tensors(), fresh.named_tensors(), strict=True))


@pytest.mark.parametrize("empty", ["no micro-batch", "padding rows only", "masked rows only"])
def test_mini_batch_without_a_token_makes_no_step(policy_path: Path, empty: str) -> None:
    rows = make_rows(LENGTHS, pads=2)
    masked = replace(rows, response_mask=torch.zeros_like(rows.response_mask))
    part: dict[str, tuple[Rows, ...]] = {
        "no micro-batch": (), "padding rows only": (rows.take([4, 5]),), "masked rows only": (masked.take([0, 1]),),
    }  # fmt: skip
    engine = TorchEngine(policy_path, weight_decay=0.1, lr=0.1)
    engine.train(Objective((ppo_clip(),), ((rows.take([0, 1]),),)))  # so that there is momentum
    before = parameters(engine)
    metrics = engine.train(Objective((ppo_clip(),), (part[empty],)))
    assert all(torch.equal(after, before[name]) for name, after in parameters(engine).items())
    assert (metrics["steps"], metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0, 0.0)
    assert (engine.version, engine.steps) == (2, 1)


def test_L15_masked_micro_batch_changes_nothing_beside_a_real_one(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    masked = replace(rows, response_mask=torch.zeros_like(rows.response_mask))
    ends = []
    for part in ((rows.take([0, 1]),), (masked.take([2, 3]), rows.take([0, 1]))):
        engine = TorchEngine(policy_path)
        engine.train(Objective((ppo_clip(),), (part,)))
        ends.append(parameters(engine))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_D13_masked_row_is_real_and_reports_metrics(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    masked = replace(rows, response_mask=torch.zeros_like(rows.response_mask))
    metrics = TorchEngine(policy_path).train(objective(masked))
    assert (metrics["rows"], metrics["tokens"], metrics["steps"]) == (0.0, 0.0, 0.0)
    assert metrics["ppo_clip/clip_fraction"] == 0.0


def test_an_engine_that_only_scores_holds_no_moments(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    engine = TorchEngine(policy_path)
    engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    assert engine._optimizer is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"schedule": "cosine"}, "needs decay_steps > 0"),
        ({"rank": 2, "dp_size": 2}, "rank 2 of 2"),
        ({"dp_size": 2, "rendezvous": "tcp://somewhere:1"}, "give a file:///"),
    ],
)
def test_bad_options_are_refused_when_it_is_made(policy_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        TorchEngine(policy_path, **options)


def test_bfloat16_runs_over_float32_parameters(policy_path: Path) -> None:
    rows = make_rows(LENGTHS)
    engine = TorchEngine(policy_path, dtype="bfloat16", lr=1e-3)
    full = TorchEngine(policy_path).log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    half = engine.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, atol=0.05, rtol=0.05)
    engine.train(objective(rows))
    assert {tensor.dtype for _, tensor in engine.named_tensors()} == {torch.float32}
