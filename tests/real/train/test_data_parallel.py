"""Two real processes against one: gradients, parameters, metrics, and what happens when a rank fails, is stuck or dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_scenarios as scenarios
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlflow.engines.tiny import make_tiny_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both ranks have run every scenario here, once."""
    folder = tmp_path_factory.mktemp("dp")
    make_tiny_model(folder / "model", alphabet="0123456789+= ", seed=1, hidden_size=32)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(scenarios.__file__)), str(folder)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    try:
        errors = [rank.communicate(timeout=180)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 9], errors  # the last scenario ends rank 1
    return folder


def of(folder: Path, name: str, rank: int = 0) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return load_file(folder / f"{name}.{rank}.safetensors"), json.loads((folder / f"{name}.{rank}.json").read_text())


def alone(folder: Path, scenario: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    result = scenario(scenarios.Place(0, 1, folder))
    return {k: v for k, v in result.items() if isinstance(v, Tensor)}, {k: v for k, v in result.items() if not isinstance(v, Tensor)}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a
    assert a.keys() == b.keys()
    squares = sum(float((a[k].double() - b[k].double()).square().sum()) for k in a)
    return float((squares / sum(float(b[k].double().square().sum()) for k in b)) ** 0.5)


@pytest.mark.parametrize(("name", "limit"), [("gradient_float64", 1e-12), ("gradient_float32", 1e-6), ("gradient_in_another_order", 1e-12)])
def test_gradient_of_two_ranks_is_that_of_one(folder: Path, name: str, limit: float) -> None:
    two, _ = of(folder, name)
    one, _ = alone(folder, getattr(scenarios, name))
    assert difference(two, one) <= limit


def test_gradient_does_not_depend_on_which_rank_holds_which_row(folder: Path) -> None:
    assert difference(of(folder, "gradient_in_another_order")[0], of(folder, "gradient_float64")[0]) <= 1e-12


def test_ranks_hold_the_same_bits(folder: Path) -> None:
    one, other = (of(folder, "four_mini_batches", rank)[0] for rank in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_parameters_and_metrics_after_four_mini_batches_agree_with_one_rank(folder: Path) -> None:
    two, words = of(folder, "four_mini_batches")
    one, reference = alone(folder, scenarios.four_mini_batches)
    assert difference(two, one) < 1e-9
    assert words["metrics"] == pytest.approx(reference["metrics"], rel=1e-9)
    assert words == of(folder, "four_mini_batches", 1)[1]


def test_L5_ranks_with_few_tokens_are_not_over_weighted(folder: Path) -> None:
    assert of(folder, "L5_ranks_with_few_tokens")[1]["metrics"]["loss"] == pytest.approx(1.4)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_statistic_is_of_the_tokens_of_all_ranks(folder: Path, rank: int) -> None:
    words = of(folder, "statistic_over_ranks", rank)[1]
    assert (words["loss"], words["none_here"]) == pytest.approx((8.0, 8.0))
    assert alone(folder, scenarios.statistic_over_ranks)[1]["loss"] == pytest.approx(8.0)


def test_L15_rank_without_a_token_joins_every_collective(folder: Path) -> None:
    two, words = of(folder, "L15_masked_rank")
    one, reference = alone(folder, scenarios.L15_masked_rank)
    assert difference(two, one) < 1e-9
    assert words["metrics"] == pytest.approx(reference["metrics"], rel=1e-9)
    assert words["metrics"]["steps"] == 3


def test_trajectory_whose_leaves_lie_on_two_ranks_counts_once(folder: Path) -> None:
    assert of(folder, "trajectories_over_ranks")[1]["metrics"]["loss"] == pytest.approx(4 / 3)


@pytest.mark.parametrize("rank", [0, 1])
def test_nan_on_one_rank_is_raised_on_both_and_nothing_is_stepped(folder: Path, rank: int) -> None:
    words = of(folder, "nan_on_one_rank", rank)[1]
    assert words["message"] == (
        "EngineError: training failed (version 0, update 0, mini-batch 0 of 1, optimizer step 0); nothing was stepped: "
        "rank 1: micro-batch 1: ppo_clip is not finite in row 0 (uid 1, traj_uid 1)"
    )
    assert not words["moved"]


def test_bug_of_a_loss_on_one_rank_is_told_to_the_other(folder: Path) -> None:
    assert of(folder, "broken_on_one_rank", 1)[1]["message"] == "KeyError: 'gone'"
    assert of(folder, "broken_on_one_rank", 0)[1]["message"].endswith("nothing was stepped: rank 1: 'gone'")


@pytest.mark.parametrize("rank", [0, 1])
def test_D1_ranks_with_different_numbers_of_mini_batches_are_refused_not_hung(folder: Path, rank: int) -> None:
    assert "ranks hold different numbers of mini-batches ([2, 1])" in of(folder, "unequal_mini_batches", rank)[1]["message"]


def test_checkpoint_of_two_ranks_continues_to_the_bit(folder: Path) -> None:
    zero, one = (of(folder, "checkpoint_of_two_ranks", rank)[1] for rank in (0, 1))
    assert (zero["same"], one["same"], zero["version"], one["version"]) == (True, True, 2, 2)
    assert (zero["redrawn"], one["redrawn"]) == (zero["drawn"], one["drawn"])
    assert zero["drawn"] != one["drawn"]


def test_ranks_listen_on_loopback_only(folder: Path) -> None:
    addresses = of(folder, "listening")[1]["addresses"]
    assert addresses, "a rank of a group listens"
    assert set(addresses) <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def test_stuck_rank_is_a_named_timeout(folder: Path) -> None:
    words = of(folder, "stuck_rank")[1]
    assert words["message"].startswith("WaitTimeout: the counts of the mini-batches: rank 0 of 2 waited 4 s")
    assert words["waited"] < 3 * scenarios.STUCK_S


def test_dead_rank_is_an_error_at_once(folder: Path) -> None:
    words = of(folder, "dead_rank")[1]
    assert words["message"].startswith("EngineError: the counts of the mini-batches: rank 0 of 2 lost another rank")
    assert words["waited"] < 10  # its bound was 60 s
