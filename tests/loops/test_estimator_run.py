"""An estimator of a user's own file, in a real run of dapo.py: it is called, on groups that the filter let through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_cases import Run

FOLDER = Path(__file__).parents[2] / "examples" / "estimator"


def test_it_runs_with_one_flag(start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=":")
    run = start_run("dapo", "--prompts", "4", "--group-size", "8", "--eval-every", "1000", "--steps", "2", "--swap", "grpo=signed:signed")
    code, _, err = run.end(240)
    assert code == 0, err
    steps = run.steps()
    assert len(steps) == 2
    assert all("signed" in step["seconds_by_hop"] and "grpo" not in step["seconds_by_hop"] for step in steps)
    assert all(0.0 < step["reward"] < 1.0 and step["rows"] == 32 for step in steps)  # four groups of eight, none of them all alike
