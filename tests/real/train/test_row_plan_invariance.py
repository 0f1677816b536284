"""P17 on the real engine with its real row plan: every shipped loss x aggregation over dp 1 and 2, micro-batches and layouts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import row_plan_scenarios as scenarios
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlflow.engines.tiny import make_tiny_model

ROOT = Path(__file__).parents[3]
WHOLE = 10_000  # a budget of tokens that holds every row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks have run all losses here, four the four mini-batches."""
    folder = tmp_path_factory.mktemp("plan")
    make_tiny_model(folder / "model", alphabet="0123456789+= ", seed=1, hidden_size=16)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(scenarios.__file__)), str(folder)]
    ranks = [subprocess.Popen([*command, str(rank), str(dp)], env=environment, stderr=subprocess.PIPE, text=True)
             for dp in (2, 4) for rank in range(dp)]  # fmt: skip
    try:
        errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * 6, errors
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Tensor]:
    """One rank, one micro-batch a mini-batch, right-padded."""
    return scenarios.run(folder, 0, 1, max_tokens=WHOLE, packed=False)


def off(a: Tensor, b: Tensor) -> float:
    assert float(b.double().norm()) > 0
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("rank", [0, 1])
def test_P17_two_ranks_in_packed_micro_batches_make_the_gradient_of_one(folder: Path, whole: dict[str, Tensor], rank: int) -> None:
    found = load_file(folder / f"dp2.{rank}.safetensors")
    assert found.keys() == whole.keys()
    assert len(found) >= 4 * 15 + 4
    wrong = {key: by for key in found if (by := off(found[key], whole[key])) > (1e-6 if key.startswith("float32") else 1e-12)}
    assert wrong.keys() <= {"parameters"}, wrong


def test_P17_one_rank_in_other_micro_batches_makes_the_same(folder: Path, whole: dict[str, Tensor]) -> None:
    found = scenarios.run(folder, 0, 1, max_tokens=24, packed=True)
    wrong = {key: by for key in found if (by := off(found[key], whole[key])) > (1e-6 if key.startswith("float32") else 1e-12)}
    assert wrong.keys() <= {"parameters"}, wrong


@pytest.mark.parametrize("dp", [2, 4])
def test_P17_parameters_after_four_mini_batches_agree(folder: Path, whole: dict[str, Tensor], dp: int) -> None:
    ends = [load_file(folder / f"dp{dp}.{rank}.safetensors")["parameters"] for rank in range(dp)]
    assert all(torch.equal(end, ends[0]) for end in ends)
    assert off(ends[0], whole["parameters"]) < 1e-9  # AdamW divides by |g|: it enlarges rounding
