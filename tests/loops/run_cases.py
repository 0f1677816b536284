"""Real runs, as a user starts them: one process of ours, its workers, its sockets, its folder."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

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
        """The processes of the run by name: host, actor, engine, engine.rollout; of two engines engine.0, engine.0.rollout, ..."""
        named = {}
        for child in psutil.Process(self.process.pid).children():
            command = child.cmdline()
            site = next((Path(a) for a in command if a.endswith(".json") and "/sites/" in a and not a.endswith(".ready.json")), None)
            if site is not None:
                named[site.stem] = child
            elif "rlflow.engines.rollout.embedded" in command:
                ready = command[command.index("--ready-file") + 1]
                named[Path(ready).name.removesuffix(".ready.json")] = child
        return named

    def end(self, timeout: float = 60.0) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


def gone(process: psutil.Process, seconds: float = 10.0) -> bool:
    """Whether the process ends within so many seconds."""
    try:
        process.wait(timeout=seconds)
    except psutil.TimeoutExpired:
        return False
    except psutil.NoSuchProcess:
        return True
    return True
