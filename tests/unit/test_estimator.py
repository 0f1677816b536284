"""The estimator of examples/estimator: a new algorithm is one file of at most 15 lines, and one flag."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from rlflow.cli import main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "estimator"
GRPO, RLOO = str(ROOT / "pipelines" / "grpo.py"), str(ROOT / "pipelines" / "rloo.py")


@pytest.fixture(autouse=True)
def in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "signed", raising=False)


def test_it_is_at_most_15_lines() -> None:
    assert len([line for line in (FOLDER / "signed.py").read_text().splitlines() if line.strip()]) <= 15


def test_outside_a_pipeline_it_is_a_function_of_tensors() -> None:
    from signed import signed  # type: ignore[import-not-found]

    rewards = torch.tensor([[0.0, 1.0, float("nan")], [0.0, 0.0, 0.0], [0.0, 0.2, 0.0], [0.0, 0.2, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, True], [True, True, False], [False, True, False]])
    found = signed(rewards, mask, torch.tensor([7, 7, 3, 3]))
    assert found.advantages.tolist() == [[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("score", [0.1, 0.3, 0.7, 0.9])
def test_equal_scores_are_told_apart_by_no_rounding(score: float) -> None:
    from signed import signed

    rewards = torch.full((8, 1), score)
    assert signed(rewards, torch.ones(8, 1, dtype=torch.bool), torch.zeros(8).long()).advantages.tolist() == [[0.0]] * 8


def test_a_row_without_a_trained_token_is_in_no_mean() -> None:
    from signed import signed

    found = signed(torch.tensor([[0.5], [0.5], [0.0]]), torch.tensor([[True], [True], [False]]), torch.zeros(3).long())
    assert found.advantages.tolist() == [[0.0], [0.0], [0.0]]


@pytest.mark.parametrize("argv", [(GRPO, "--advantage", "signed:signed"), (RLOO, "--swap", "rloo=signed:signed")])
def test_it_swaps_in_with_one_flag(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *argv]) == 0
    assert "no error" in capsys.readouterr().out
    assert main(["explain", *argv]) == 0
    assert "signed" in capsys.readouterr().out


def test_what_it_declares_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--advantage", "signed:signed", "--group-size", "1"]) == 3
    assert "error[RLF512]: `signed` compares the members of a group, and a group is 1 trajectory" in capsys.readouterr().err
