"""The folder of a run.

runs/NAME/
  plan.json          the checked graph; plan-before-3.json: that of the timelines before 3, where it was another
  parameters.json    every parameter of the pipeline and every option of the run, as resolved and as told: enough to resume
  metrics.jsonl      one line a step, one a held-out evaluation
  model/             the tiny model, when the run made one
  ledger.sqlite      what was decided, up to the last transaction; run.lock is held by the process that works on the run
  history.jsonl      one line for each batch trained, group dropped, timeline begun; `rlflow.run.audit` holds it against the ledger
  rows/              UID/...: rows of groups that a resume may ask for
  checkpoints/       step-000010/WORKER/: a Hugging Face folder with optimizer and random state beside it; best -> one of them
  logs/              what each process printed
  ended.json         how it ended; not there while it runs, nor after a kill
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError


class RunDir:
    """A folder that is there; `create` makes one."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path.resolve(), path.name
        for folder in ("logs", "checkpoints", "sites"):
            (self.path / folder).mkdir(exist_ok=True)
        self._metrics = (self.path / "metrics.jsonl").open("ab", buffering=0)

    @staticmethod
    def create(root: Path, name: str | None, pipeline: str) -> RunDir:
        """`root/name`; a name that is taken is refused, a missing one is made of the pipeline and the time."""
        name = name or _free_name(root, f"{pipeline}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
        if Path(name).name != name or name in (".", ".."):
            raise UsageError(f"--name {name!r} is not a plain folder name")
        path = (root / name).resolve()
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"run {path} exists already: choose another --name, or remove it") from None
        except OSError as error:
            raise UsageError(f"--root {root}: no folder for the run can be made there ({error.strerror})") from None
        return RunDir(path)

    @staticmethod
    def reopen(path: Path) -> RunDir:
        """Of a run that goes on: its metrics are appended to, after the last whole line."""
        metrics = path / "metrics.jsonl"
        if metrics.exists() and (content := metrics.read_bytes()) and not content.endswith(b"\n"):
            os.truncate(metrics, content.rfind(b"\n") + 1)
        return RunDir(path)

    def write_json(self, name: str, value: Any) -> Path:
        return self.write(name, msgspec.json.format(msgspec.json.encode(value, enc_hook=str)) + b"\n")

    def write(self, name: str, content: bytes) -> Path:
        """A file that is there whole, or as it was before."""
        path, unfinished = self.path / name, self.path / f".{name}.unfinished"
        unfinished.write_bytes(content)
        unfinished.replace(path)
        return path

    def metric(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        self._metrics.write(msgspec.json.encode(line) + b"\n")

    def log(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def tail(self, process: str, lines: int = 12) -> str:
        """The end of what a process printed."""
        path = self.log(process)
        text = path.read_text(errors="replace") if path.exists() else ""
        said = [line for line in text.splitlines() if "resource_tracker" not in line and line.strip() != "warnings.warn("]
        return "\n".join(said[-lines:])

    def close(self) -> None:
        self._metrics.close()


def _free_name(root: Path, name: str) -> str:
    tried, i = name, 2
    while (root / tried).exists():
        tried, i = f"{name}-{i}", i + 1
    return tried
