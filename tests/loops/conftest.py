"""The fixtures that start real runs, as a user does, and leave none behind."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_cases import Run


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[Path, list[str]], Run]]:
    """`started(FOLDER, ["resume", ...])` starts `rlflow resume ...`, whose run is in that folder."""
    runs: list[Run] = []

    def start(folder: Path, command: list[str]) -> Run:
        argv = [sys.executable, "-m", "rlflow.cli", *command]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        runs.append(Run(process, folder))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait(timeout=30)


@pytest.fixture
def start_run(started: Callable[[Path, list[str]], Run], tmp_path: Path) -> Callable[..., Run]:
    """`start_run("grpo", "--steps", "2")` starts a run of a shipped pipeline, or of a file."""

    names = (f"run{i}" for i in itertools.count())

    def start(pipeline: str, *flags: str) -> Run:
        file = pipeline if pipeline.endswith(".py") else str(Path(__file__).parents[2] / "pipelines" / f"{pipeline}.py")
        folder = tmp_path / next(names)
        return started(folder, ["run", file, "--root", str(tmp_path), "--name", folder.name, *flags])

    return start


@pytest.fixture
def resume_run(started: Callable[[Path, list[str]], Run]) -> Callable[..., Run]:
    """`resume_run(FOLDER, "--steps", "4")` goes on with a run that has ended."""
    return lambda folder, *flags: started(folder, ["resume", str(folder), *flags])
