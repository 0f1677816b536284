"""history.jsonl: what was trained and dropped, for good or on a timeline that died. It is only ever appended to.

    {"kind": "timeline", "timeline": 1, "version": 20, ...}                        weights go on from those of version 20
    {"kind": "trained", "timeline": 1, "batch": 20, "groups": [[161, 8, 19], ...]} uid, trajectories, oldest version that sampled them
    {"kind": "dropped", "timeline": 1, "version": 21, "uid": 164, "reason": "stale"}

The ledger forgets groups that a checkpoint covers; here each keeps its line, so that the two can be held against each other.
Lines are written before the transaction that they belong to, which notes how many there are: those beyond are of a transaction that never
was. Each line is sealed with its contents and the seal of the line before: none can be changed, moved, added or left out.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ...disk import write_all
from ...errors import LedgerError
from ..controller.books import Books
from ..controller.journal import Change, Finished, GroupRow, Pending, TimelineRow

FILE = "history.jsonl"
SEAL = b',"seal":'


class Timeline(msgspec.Struct, frozen=True, tag="timeline", tag_field="kind", omit_defaults=True):
    """version: of the checkpoint that it began at: batches from it on, and drops by later versions, are undone."""

    timeline: int
    version: int
    n: int
    max_lag: int
    policy: str
    least_left: int = 0


class Trained(msgspec.Struct, frozen=True, tag="trained", tag_field="kind"):
    """groups: (uid, trajectories that were trained, oldest version that sampled a token of them; -1: not known).

    A fourth number, where there is one: the trajectories that filters took out of the group.
    """

    timeline: int
    batch: int
    groups: tuple[tuple[int, ...], ...]


class Dropped(msgspec.Struct, frozen=True, tag="dropped", tag_field="kind"):
    """version: published when it was dropped."""

    timeline: int
    version: int
    uid: int
    reason: str


Line = Timeline | Trained | Dropped


class History:
    """The file, open for appending. lines, chain: what the ledger holds of it: the number of lines and the seal of the last one."""

    def __init__(self, folder: Path, lines: int, chain: int, books: Books) -> None:
        """Cuts what was never committed; writes again what a power cut took and the ledger still knows."""
        self.path = folder / FILE
        known, end, self.chain = _parse(self.path, lines)
        self.lines = len(known)
        self.lost = lines - len(known)
        if self.lines == lines and self.chain != chain:
            raise LedgerError(f"{self.path} is not the history of this ledger: line {lines} is another one")
        self._is_synced = False  # who wrote what is there may have been killed before it was
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, end)
        self._dropped = {uid for uid, group in books.groups.items() if group.state == "dropped"}
        self._append(_missing(books, known))

    def note(self, changes: Sequence[Change]) -> None:
        """The lines of a transaction that is about to be committed; those that the ledger forgets with it are on the disk first."""
        lines: list[Line] = []
        for change in changes:
            kind = type(change)
            if kind is GroupRow:
                lines += self._of_group(change)  # type: ignore[arg-type]
            elif kind is TimelineRow:
                lines.append(_timeline(change))  # type: ignore[arg-type]
            elif kind is Finished or kind is Pending:
                self._dropped.difference_update(change.uids)  # type: ignore[union-attr]
        if lines:
            self._append(lines)
        if not self._is_synced and any(type(change) is Finished for change in changes):
            os.fsync(self._fd)
            self._is_synced = True

    def trained(self, timeline: int, batch: int, groups: Sequence[tuple[int, ...]]) -> None:
        """A batch was trained; told before the event is decided."""
        self._append([Trained(timeline, batch, tuple(groups))])

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _of_group(self, row: GroupRow) -> Iterator[Line]:
        """A row that is written again is no second drop."""
        if row.state != "dropped":
            self._dropped.discard(row.uid)
        elif row.uid not in self._dropped:
            self._dropped.add(row.uid)
            yield _drop(row)

    def _append(self, lines: Iterable[Line]) -> None:
        """All of them or, where the disk takes only a part, none."""
        text, chain, count = b"", self.chain, self.lines
        for line in lines:
            body = msgspec.json.encode(line)
            chain = zlib.crc32(body, chain)
            text += body[:-1] + SEAL + b"%d}\n" % chain
            count += 1
        if not text:
            return
        self._is_synced = False
        size = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, text, self.path)
        except OSError:
            os.ftruncate(self._fd, size)
            raise
        self.chain, self.lines = chain, count


def read_history(folder: Path, lines: int, chain: int) -> list[Line]:
    """The lines that the ledger knows of. Raises LedgerError for a line that was changed, added or left out, and for missing ones."""
    path = folder / FILE
    known, _, found = _parse(path, lines)
    if len(known) < lines or found != chain:
        raise LedgerError(f"{path}: the ledger knows of {lines} lines, {len(known)} are there, and the last one is not the same")
    return known


def _parse(path: Path, most: int) -> tuple[list[Line], int, int]:
    """Lines, bytes that they take, and the seal of the last one. Half a line at the end is none."""
    lines: list[Line] = []
    end = chain = 0
    for text in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if len(lines) == most or not text.endswith(b"\n"):
            break
        body, _, seal = text.rpartition(SEAL)
        chain = zlib.crc32(body + b"}", chain)
        if seal != b"%d}\n" % chain:
            raise LedgerError(f"{path}, line {len(lines) + 1}: it or the line before it is not the one that was written: {text[:200]!r}")
        lines.append(msgspec.json.decode(body + b"}", type=Line))
        end += len(text)
    return lines, end, chain


def _missing(books: Books, lines: Sequence[Line]) -> Iterator[Line]:
    """What the ledger holds rows of and no line tells."""
    timelines = {line.timeline for line in lines if isinstance(line, Timeline)}
    yield from (_timeline(row) for key, row in sorted(books.timelines.items()) if key not in timelines)
    trained = {(line.timeline, line.batch) for line in lines if isinstance(line, Trained)}
    for key, batch in sorted(books.batches.items()):
        if batch.state == "trained" and key not in trained:
            yield Trained(batch.timeline, batch.batch, tuple(_group(books, uid) for uid in batch.groups))
    dropped = {(line.timeline, line.uid) for line in lines if isinstance(line, Dropped)}
    for uid, row in sorted(books.groups.items()):
        if row.state == "dropped" and (row.timeline, uid) not in dropped:
            yield _drop(row)


def _group(books: Books, uid: int) -> tuple[int, ...]:
    rows = books.trajectories.get(uid, {}).values()
    left = [row for row in rows if row.state != "dropped"]
    return trained_group(uid, len(left), min((span.version for row in left for span in row.spans), default=-1), len(rows) - len(left))


def trained_group(uid: int, trajectories: int, oldest: int, taken_out: int) -> tuple[int, ...]:
    """As a line of a trained batch tells it."""
    return (uid, trajectories, oldest, taken_out) if taken_out else (uid, trajectories, oldest)


def _timeline(row: TimelineRow) -> Line:
    return Timeline(row.timeline, row.version, row.n, row.max_lag, row.policy, row.least_left)


def _drop(row: GroupRow) -> Line:
    return Dropped(row.timeline, row.version, row.uid, row.reason)
