"""The judge of examples/judge runs: a process of its own with a frozen model, its field measured, nothing left in the pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from run_cases import Run

FILE = str(Path(__file__).parents[2] / "examples" / "judge" / "judge.py")


def test_a_loop_with_a_judge_runs(start_run: Callable[..., Run]) -> None:
    run = start_run(FILE, "--prompts", "4", "--group-size", "2", "--share", "0.25", "--steps", "2")
    code, out, err = run.end(240)
    assert code == 0, err
    assert "held-out at version 2: reward" in out
    steps = run.steps()
    assert len(steps) == 2
    for step in steps:
        measured = step["metrics"]
        judged, rule = measured["judge.judge/judge_scores"], measured["integer_match/token_level_scores"]
        assert 0.0 < judged < 1.0
        assert abs(measured["mix/mix"] - (0.75 * rule + 0.25 * judged)) < 1e-6
        assert step["pool_bytes"] == 0
        assert "judge.judge" in step["seconds_by_hop"]
