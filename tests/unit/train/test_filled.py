"""Rows without log-probs of the weights that train them: the training forward yields the same numbers."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from train_cases import Objective, Rows, make_rows, parameters

from operators.loss import entropy_bonus, ppo_clip, value_clip
from rlflow.engines.train.torch import OneByOne, TorchEngine
from rlflow.errors import EngineError

LENGTHS = (6, 9, 4, 8)


def micro_batches(rows: Rows, lacking: str = "", **given: torch.Tensor) -> tuple[Any, ...]:
    """Two micro-batches, padded each to its own longest row; `lacking`: a field that they do not have."""
    made = []
    for chosen in ([0, 1], [2, 3, 4]):
        taken = vars(rows.take(chosen))
        width = taken["response_mask"].shape[1]
        taken |= {name: value[chosen][:, :width] for name, value in given.items()}
        made.append(SimpleNamespace(**{name: value for name, value in taken.items() if name != lacking}))
    return tuple(made)


def test_a_step_without_old_log_probs_is_the_step_with_those_of_the_weights_held(policy_path: Path) -> None:
    rows, losses = make_rows(LENGTHS, pads=1), (ppo_clip(0.2, 0.28), entropy_bonus(0.1))
    scoring, sparing = (TorchEngine(policy_path, lr=1e-2) for _ in range(2))
    old = scoring.log_probs(rows.input_ids, rows.position_ids, rows.attention_mask)
    with_field = scoring.train(Objective(losses, (micro_batches(rows, old_log_probs=old),)))
    without = sparing.train(Objective(losses, (micro_batches(rows, lacking="old_log_probs"),)))
    moved, start = parameters(sparing), parameters(TorchEngine(policy_path))
    for name, tensor in parameters(scoring).items():
        torch.testing.assert_close(moved[name], tensor, rtol=0, atol=1e-6)
    assert max(float((moved[name] - start[name]).abs().max()) for name in moved) > 1e-3  # a step was made at all
    assert without["loss"] == pytest.approx(with_field["loss"], abs=1e-6)
    assert without["ppo_clip/ratio"] == pytest.approx(1.0, abs=1e-6)


def test_the_value_before_the_update_is_that_of_the_forward(critic_path: Path) -> None:
    rows = make_rows(LENGTHS, pads=1)
    scoring, sparing = (TorchEngine(critic_path, kind="critic", lr=1e-2) for _ in range(2))
    values = scoring.values(rows.input_ids, rows.position_ids, rows.attention_mask)
    scoring.train(Objective((value_clip(0.5),), (micro_batches(rows, values=values),)))
    sparing.train(Objective((value_clip(0.5),), (micro_batches(rows, lacking="values"),)))
    for name, tensor in parameters(scoring).items():
        torch.testing.assert_close(parameters(sparing)[name], tensor, rtol=0, atol=1e-6)


def test_no_gradient_flows_through_what_was_taken(policy_path: Path) -> None:
    """d/dx exp(x - sg(x)) A = A: were the anchor not detached, the ratio would be constant and nothing would move."""
    rows = make_rows(LENGTHS, pads=1)
    norm = TorchEngine(policy_path).train(Objective((ppo_clip(),), (micro_batches(rows, lacking="old_log_probs"),)))["grad_norm"]
    assert norm > 0.01


@pytest.mark.parametrize(("parts", "updates", "steps"), [(1, 2, "2 updates x 1 mini-batches"), (2, 1, "1 updates x 2 mini-batches")])
def test_a_second_step_has_no_forward_of_the_weights_that_scored(policy_path: Path, parts: int, updates: int, steps: str) -> None:
    micro = micro_batches(make_rows(LENGTHS, pads=1), lacking="old_log_probs")
    engine = TorchEngine(policy_path)
    before = parameters(engine)
    with pytest.raises(EngineError, match=f"the rows have no old_log_probs; .* there are 2 \\({steps}\\)"):
        engine.train(Objective((ppo_clip(),), (micro,) * parts), updates=updates)
    assert all(bool((tensor == before[name]).all()) for name, tensor in parameters(engine).items())


def test_a_micro_batch_leaves_the_device_before_the_next_one_comes() -> None:
    rows = OneByOne(micro_batches(make_rows(LENGTHS, pads=1)), torch.device("meta"))
    moved = [weakref.ref(micro.input_ids) for micro in rows]
    assert len(rows) == len(moved) == 2
    assert [ref() is None for ref in moved[:-1]] == [True]
