"""`rlflow resume`: a real run goes on after a kill, and after that a stop, as if nothing had been."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from run_cases import SMALL, Run, gone

from rlflow.cli import main
from rlflow.run.audit import audit
from rlflow.run.runs import summary

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
START = ("--max-lag", "1", "--save-every", "2", "--steps", "100000")


def test_a_killed_run_goes_on_from_its_newest_checkpoint(start_run: Callable[..., Run], resume_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, *START)
    run.wait_for_step(3)
    children = [*run.children().values(), psutil.Process(run.process.pid)]
    assert main(["resume", str(run.folder)]) == 2  # a process works on it
    run.process.send_signal(signal.SIGKILL)
    run.end()
    assert all(gone(child) for child in children)

    killed = summary(run.folder, 0.0)
    version = killed.checkpoint
    assert killed.state == "killed"
    assert version is not None
    assert version >= 2
    resumed = resume_run(run.folder, "--steps", str(version + 3))
    code, _, err = resumed.end(240)
    assert code == 0, err
    lines = resumed.lines()
    (at,) = (i for i, line in enumerate(lines) if line["kind"] == "timeline" and line["timeline"] == 1)
    assert lines[at]["version"] == version
    assert [line["step"] for line in lines[at:] if line["kind"] == "step"] == [version + 1, version + 2, version + 3]
    assert audit(run.folder).faults == ()
    assert (summary(run.folder, 0.0).state, summary(run.folder, 0.0).version) == ("done", version + 3)


def test_a_stopped_run_goes_on_with_other_flags(start_run: Callable[..., Run], resume_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, *START)
    run.wait_for_step(1)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 0
    version = summary(run.folder, 0.0).checkpoint
    assert version is not None
    resumed = resume_run(run.folder, "--steps", str(version + 2), "--prompts", "2", "--max-lag", "0", "--lr", "5e-4")
    code, out, err = resumed.end(240)
    assert code == 0, err
    assert "  ~ lr: 0.001 → 0.0005" in out
    assert [line["rows"] for line in resumed.steps()[-2:]] == [4, 4]  # 2 prompts x 2 trajectories
    assert audit(run.folder).faults == ()


def test_a_run_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(CHAOS), "--kills", "3", "--seed", "1", "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{(tmp_path / 'output.log').read_text()[-3000:]}"
    assert "nothing lost, doubled or skipped" in done.stdout
    assert "left behind: nothing" in done.stdout
