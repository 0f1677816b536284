"""The folder of a run.

runs/NAME/
  plan.json          the checked graph
  parameters.json    every parameter of the pipeline and every option of the run, as resolved and as told: enough to resume
  metrics.jsonl      one line a step, one a held-out evaluation
  model/             the tiny model, when the run made one
  checkpoints/       step-000010/WORKER/: a Hugging Face folder with optimizer and random state beside it
  logs/              what each process printed
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError


class RunDir:
    """Creates `root/name`; a name that is taken is refused, a missing one is made of the pipeline and the time."""

    def __init__(self, root: Path, name: str | None, pipeline: str) -> None:
        self.name = name or self._free_name(root, f"{pipeline}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
        if Path(self.name).name != self.name or self.name in (".", ".."):
            raise UsageError(f"--name {self.name!r} is not a plain folder name")
        self.path = (root / self.name).resolve()
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"run {self.path} exists already: choose another --name, or remove it") from None
        except OSError as error:
            raise UsageError(f"--root {root}: no folder for the run can be made there ({error.strerror})") from None
        for folder in ("logs", "checkpoints", "sites"):
            (self.path / folder).mkdir()
        self._metrics = (self.path / "metrics.jsonl").open("ab", buffering=0)

    @staticmethod
    def _free_name(root: Path, name: str) -> str:
        tried, i = name, 2
        while (root / tried).exists():
            tried, i = f"{name}-{i}", i + 1
        return tried

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
