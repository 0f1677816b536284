"""Real runs, as a user starts them: one process of ours, its workers, its sockets, its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

START_SECONDS = 180.0
SMALL = ("--prompts", "4", "--group-size", "2", "--eval-every", "1000")


@dataclass
class Run:
    """A started `rlflow run`."""

    process: subprocess.Popen[str]
    folder: Path

    def lines(self) -> list[dict[str, Any]]:
        """What metrics.jsonl says so far; a line that is being written is left out."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def steps(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["kind"] == "step"]

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(self.steps()) < step:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"step {step} was not reached within {START_SECONDS:g} s"
            time.sleep(0.1)

    def children(self) -> dict[str, psutil.Process]:
        """The processes of the run by name: host, actor, engine, engine.rollout."""
        named = {}
        for child in psutil.Process(self.process.pid).children():
            command = child.cmdline()
            site = next((Path(a) for a in command if a.endswith(".json") and "/sites/" in a and not a.endswith(".ready.json")), None)
            if site is not None:
                named[site.stem] = child
            elif "rlflow.engines.rollout.embedded" in command:
                named["engine"] = child
        return named

    def end(self, timeout: float = 60.0) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


@pytest.fixture()
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """`start_run("grpo", "--steps", "2")` starts a run of a shipped pipeline, or of a file."""
    started: list[Run] = []

    def start(pipeline: str, *flags: str) -> Run:
        file = pipeline if pipeline.endswith(".py") else str(Path(__file__).parents[2] / "pipelines" / f"{pipeline}.py")
        name = f"run{len(started)}"
        command = [sys.executable, "-m", "rlflow.cli", "run", file, "--root", str(tmp_path), "--name", name, *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ})
        started.append(Run(process, tmp_path / name))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait(timeout=30)


def gone(process: psutil.Process, seconds: float = 10.0) -> bool:
    """Whether the process ends within so many seconds."""
    try:
        process.wait(timeout=seconds)
    except psutil.TimeoutExpired:
        return False
    except psutil.NoSuchProcess:
        return True
    return True
