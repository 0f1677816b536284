"""Nothing lost, doubled or skipped: the ledger of a run held against its history, by queries of their own.

    ledger.sqlite ──attached──┐
                              ├──▶ audit_rules.RULES ──▶ faults, each with its place
    history.jsonl ──loaded────┘

Every uid below the highest drawn is exactly one of: trained once on the surviving timeline, dropped with a reason, live, pending.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import LedgerError
from . import rowfiles
from .audit_rules import HISTORY, PENDING, RULES, SURVIVORS
from .controller.ids import TrajectoryId
from .ledger.history import Dropped, Line, Timeline, Trained, read_history
from .ledger.store import reading
from .ledger.tables import load_history

AT_MOST = 5  # faults that are told of one rule


@dataclass(frozen=True)
class Fault:
    rule: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """faults: empty if all is well. taken_out: trajectories that filters took out of the groups that were trained.

    pending: intervals of uids below the highest drawn that are to be drawn next.
    """

    faults: tuple[Fault, ...]
    timelines: int = 0
    batches: int = 0
    trained: int = 0
    taken_out: int = 0
    dropped: int = 0
    live: int = 0
    pending: tuple[tuple[int, int], ...] = ()

    def says(self) -> str:
        """One line of counts, or one a fault."""
        if self.faults:
            return "\n".join(f"{fault.rule}: not so: {fault.place}" for fault in self.faults)
        prompts, batches = f"{self.trained} prompt{'s' * (self.trained != 1)}", f"{self.batches} batch{'es' * (self.batches != 1)}"
        less = f" (less {self.taken_out} trajector{'y' if self.taken_out == 1 else 'ies'} that filters took out)" if self.taken_out else ""
        counts = f"{prompts} trained in {batches}{less}, {self.dropped} dropped, {self.live} live"
        pending = sum(stop - start for start, stop in self.pending)
        timelines = f"{self.timelines} timeline{'s' * (self.timelines != 1)}"
        return f"{counts}, {pending} to be drawn again, on {timelines}: nothing lost, doubled or skipped"


def audit(folder: Path, *, rows: bool = True) -> Audit:
    """Check a run, one that goes on too. rows: also that the rows of all landed trajectories are there, where the run keeps any."""
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None, uri=True)) as connection, reading(folder, connection):
            _load(connection, read_history(folder, *load_history(connection)))
            _run(connection, SURVIVORS)
            found, missing = _audited(connection), _missing_rows(connection, folder / "rows") if rows else {}
        kept = [Fault("landed rows are kept", f"{missing[one]} is missing") for one in _landed_still(folder, missing)[:AT_MOST]]
        return replace(found, faults=(*found.faults, *kept))
    except LedgerError as error:
        return Audit(faults=(Fault("the files can be read", str(error)),))


def _run(connection: sqlite3.Connection, statements: str) -> None:
    """One after the other, within the transaction that is open (`executescript` would end it)."""
    for statement in statements.split(";"):
        connection.execute(statement)


def _load(connection: sqlite3.Connection, lines: list[Line]) -> None:
    _run(connection, HISTORY)
    for number, line in enumerate(lines, 1):
        match line:
            case Timeline(timeline, version, n, max_lag, policy, least_left):
                values = (number, timeline, version, n, max_lag, policy, least_left)
                connection.execute("INSERT INTO timeline VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            case Trained(timeline, batch, groups):
                told = [(number, timeline, batch, *group, *([0] * (4 - len(group)))) for group in groups]
                connection.executemany("INSERT INTO trained VALUES (?, ?, ?, ?, ?, ?, ?)", told)
            case Dropped(timeline, version, uid, reason):
                connection.execute("INSERT INTO dropped VALUES (?, ?, ?, ?, ?)", (number, timeline, version, uid, reason))


def _audited(connection: sqlite3.Connection) -> Audit:
    def count(query: str) -> int:
        return int(connection.execute(f"SELECT count(*) FROM {query}").fetchone()[0])

    return Audit(
        faults=tuple(Fault(rule, place) for rule, sql in RULES.items() for (place,) in connection.execute(f"{sql} LIMIT {AT_MOST}")),
        timelines=count("timeline"),
        batches=count("(SELECT DISTINCT batch FROM survivor)"),
        trained=count("survivor"),
        taken_out=connection.execute("SELECT ifnull(sum(taken_out), 0) FROM survivor").fetchone()[0],
        dropped=count("done WHERE state = 'dropped'"),
        live=count("ledger.groups WHERE state NOT IN ('trained', 'dropped')"),
        pending=tuple(connection.execute(PENDING)),
    )


def _missing_rows(connection: sqlite3.Connection, rows: Path) -> dict[TrajectoryId, Path]:
    """Of landed trajectories; empty where the run keeps no rows."""
    if not rows.is_dir():
        return {}
    landed = [(trajectory, rowfiles.trajectory_rows(rows, trajectory)) for trajectory in _landed(connection)]
    there = {uid: rowfiles.names(rows, uid) for uid in {trajectory.uid for trajectory, _ in landed}}
    return {trajectory: path for trajectory, path in landed if path.name not in there[trajectory.uid]}


def _landed_still(folder: Path, trajectories: Collection[TrajectoryId]) -> list[TrajectoryId]:
    """By the ledger as it is now: a run that goes on deletes rows once it has committed what became of them."""
    if not trajectories:
        return []
    with closing(sqlite3.connect(":memory:", isolation_level=None, uri=True)) as connection, reading(folder, connection):
        landed = set(_landed(connection))
    return [trajectory for trajectory in trajectories if trajectory in landed]


def _landed(connection: sqlite3.Connection) -> Iterator[TrajectoryId]:
    for row in connection.execute("SELECT uid, traj_uid, attempt FROM ledger.trajectories WHERE state IN ('landed', 'dropped')"):
        yield TrajectoryId(*row)
