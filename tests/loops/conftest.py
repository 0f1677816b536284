"""The fixture that starts real runs, as a user does, and leaves none behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_cases import Run


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """`start_run("grpo", "--steps", "2")` starts a run of a shipped pipeline, or of a file."""
    started: list[Run] = []

    def start(pipeline: str, *flags: str) -> Run:
        file = pipeline if pipeline.endswith(".py") else str(Path(__file__).parents[2] / "pipelines" / f"{pipeline}.py")
        name = f"run{len(started)}"
        command = [sys.executable, "-m", "rlflow.cli", "run", file, "--root", str(tmp_path), "--name", name, *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        started.append(Run(process, tmp_path / name))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait(timeout=30)
