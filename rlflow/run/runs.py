"""The runs in a folder, and what has become of each.

    running ──▶ done | stopped | failed     what it says itself, in ended.json, as its last act
       └──────▶ killed                      nobody holds it, and it said nothing

All but a running one go on by `rlflow resume`, from the version of the newest checkpoint in the ledger; a done one needs more --steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import LedgerError, UsageError
from .controller.books import Books
from .ledger import holder, read_books
from .record import FILE, Ended, Record

TAIL = 1 << 20  # bytes of metrics.jsonl in which the last evaluation is looked for
COLUMNS = ("run", "pipeline", "state", "version", "resumes at", "held-out", "last sign of life")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. steps: to train in all. version: batches trained. checkpoint: the version that a resume begins at, None: there is no ledger.

    idle: seconds since it last wrote something down. reward: of the last held-out evaluation.
    """

    name: str
    folder: str
    pipeline: str
    state: Literal["running", "done", "stopped", "failed", "killed", "unreadable"]
    why: str
    pid: int | None
    steps: int
    version: int | None
    checkpoint: int | None
    reward: float | None
    idle: float


def runs_in(root: Path, now: float) -> list[Summary]:
    """Every run below `root`, the one that was at work last first. now: seconds of the epoch. Raises UsageError for what is no folder."""
    try:
        folders = [folder for folder in root.iterdir() if (folder / FILE).is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"--root {root}: {error.strerror}") from None
    return sorted((summary(folder, now) for folder in folders), key=lambda run: run.idle)


def summary(folder: Path, now: float) -> Summary:
    """Of one run."""
    try:
        return _summary(folder, now)
    except (UsageError, OSError) as error:
        return _unreadable(folder, str(error), now)


def _summary(folder: Path, now: float) -> Summary:
    record, pid, ended, books = Record.read(folder), holder(folder), Ended.read(folder), _books(folder)
    written = [folder / name for name in ("metrics.jsonl", FILE) if (folder / name).exists()]
    state = "running" if pid is not None else "killed" if ended is None else ended.ended
    return Summary(
        name=folder.name,
        folder=str(folder),
        pipeline=record.told.pipeline if record.told else "?",
        state=state,
        why=ended.why if ended and pid is None else books if isinstance(books, str) else "",
        pid=pid,
        steps=record.run.steps,
        version=version_of(books) if isinstance(books, Books) else None,
        checkpoint=checkpoint_of(books) if isinstance(books, Books) else None,
        reward=_last_reward(folder / "metrics.jsonl"),
        idle=max(0.0, now - max(path.stat().st_mtime for path in written)),
    )


def _unreadable(folder: Path, why: str, now: float) -> Summary:
    return Summary(
        name=folder.name, folder=str(folder), pipeline="?", state="unreadable", why=why, pid=None, steps=0, version=None, checkpoint=None,
        reward=None, idle=max(0.0, now - folder.stat().st_mtime),
    )  # fmt: skip


def version_of(books: Books) -> int:
    """Batches trained, on the newest timeline."""
    newest = max(books.timelines, default=0)
    trained = [batch + 1 for (timeline, batch), row in books.batches.items() if timeline == newest and row.state == "trained"]
    return max([checkpoint_of(books), *trained])


def checkpoint_of(books: Books) -> int:
    """The version that a resume begins at."""
    return books.saved.version if books.saved else min((row.version for row in books.timelines.values()), default=0)


def as_table(runs: Sequence[Summary]) -> str:
    """A line a run, in columns."""
    rows = [COLUMNS, *map(_cells, runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _cells(run: Summary) -> tuple[str, ...]:
    state = f"running ({run.pid})" if run.pid is not None else run.state
    why = run.why.strip().partition("\n")[0] if run.state in ("failed", "killed", "unreadable") else ""
    return (
        run.name,
        run.pipeline,
        f"{state}: {why if len(why) <= 60 else why[:59] + '…'}" if why else state,
        "-" if run.version is None else f"{run.version}/{run.steps}",
        "-" if run.checkpoint is None or run.state == "running" else str(run.checkpoint),
        "-" if run.reward is None else f"{run.reward:.3f}",
        f"{_ago(run.idle)} ago",
    )


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _books(folder: Path) -> Books | str:
    """What the ledger holds, or what is wrong with it."""
    try:
        return read_books(folder)
    except LedgerError as error:
        return str(error)


def _last_reward(path: Path) -> float | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"held_out"' in line and line.endswith(b"}"):
            return _reward(line)
    return None


def _reward(line: bytes) -> float | None:
    try:
        said: dict[str, Any] = msgspec.json.decode(line)
    except msgspec.DecodeError:  # cut in the middle: it is longer than what was read
        return None
    return said.get("reward")
