"""A change as the row of its table, and the rows of all tables as Books.

GroupRow → groups   TrajectoryRow → trajectories   TimelineRow → timelines   SavedRow → saved   PassRate → pass_rates
BatchRow → batches   EvaluationRow → evaluations     (a last word deletes the row)
Counters → counters, a row a field                   (one that an older file has no row of takes its default)
Finished → finished, as intervals; totals, as counts

Columns are the fields of the struct, in their order, and the seal. Tuples are JSON: spans ``[[version, start, end], ...]``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec

from ..controller.books import Books
from ..controller.ids import Span
from ..controller.intervals import IntervalSet
from ..controller.journal import BatchRow, Change, Counters, EvaluationRow, GroupRow, PassRate, SavedRow, TimelineRow, TrajectoryRow
from ..controller.tally import Tally
from .schema import seal

Row = tuple[Any, ...]


COLUMNS: dict[str, tuple[str, ...]] = {
    "groups": GroupRow.__struct_fields__,
    "trajectories": TrajectoryRow.__struct_fields__,
    "batches": BatchRow.__struct_fields__,
    "evaluations": EvaluationRow.__struct_fields__,
    "timelines": TimelineRow.__struct_fields__,
    "saved": ("newest", *SavedRow.__struct_fields__),
    "pass_rates": PassRate.__struct_fields__,
    "counters": ("name", "value"),
    "finished": ("start", "stop"),
    "totals": ("state", "reason", *Tally.__slots__),
    "history": ("newest", "lines", "chain"),
}
"""Of each table, but its seal."""

UPSERT = {
    table: f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}, seal) VALUES ({', '.join('?' * (len(columns) + 1))})"
    for table, columns in COLUMNS.items()
}


def sealed(*values: Any) -> Row:
    return (*values, seal(values))


def _plain(change: msgspec.Struct) -> Row:
    values = msgspec.structs.astuple(change)
    return (*values, seal(values))


def _trajectory(change: TrajectoryRow) -> Row:
    c = change
    begin = (c.uid, c.traj_uid, c.attempt, c.version_tag, c.state, c.engine, c.rows)
    return sealed(*begin, _spans(c.spans), c.hops_done, c.tries, c.passes, c.reason)


def _spans(spans: tuple[Span, ...]) -> str:
    return _json([msgspec.structs.astuple(span) for span in spans]) if spans else "[]"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _timeline(change: TimelineRow) -> Row:
    c = change
    return sealed(c.timeline, c.version, c.n, c.groups_per_batch, c.max_lag, c.last, _json(c.hops), c.policy, c.least_left)


STREAMED: dict[type, tuple[str, Callable[[Any], Row]]] = {
    GroupRow: ("groups", _plain),
    TrajectoryRow: ("trajectories", _trajectory),
    TimelineRow: ("timelines", _timeline),
    SavedRow: ("saved", lambda change: sealed(1, change.timeline, change.version)),
    PassRate: ("pass_rates", _plain),
}
"""Changes that are nothing but the newest row of their key."""


def is_forgotten(change: Change) -> bool:
    """Its row is to be deleted."""
    return isinstance(change, PassRate) and not change.tries


def batch_row(change: BatchRow) -> Row:
    return sealed(change.timeline, change.batch, change.state, _json(change.groups))


def evaluation_row(change: EvaluationRow) -> Row:
    return _plain(change)


def load(connection: sqlite3.Connection) -> Books:
    """All tables, as they are within one read transaction."""
    books = Books(
        groups={uid: GroupRow(uid, *rest) for uid, *rest in _rows(connection, "groups")},
        finished=load_finished(connection),
        batches={
            (timeline, batch): BatchRow(timeline, batch, state, _ints(groups))
            for timeline, batch, state, groups in _rows(connection, "batches")
        },
        evaluations={due: EvaluationRow(due, *rest) for due, *rest in _rows(connection, "evaluations")},
        timelines={timeline: _timeline_row(timeline, *rest) for timeline, *rest in _rows(connection, "timelines")},
        saved=next((SavedRow(*row[1:]) for row in _rows(connection, "saved")), None),
        pass_rates={(row.row, row.version): row for row in (PassRate(*values) for values in _rows(connection, "pass_rates"))},
        counters=load_counters(connection),
    )
    for uid, traj_uid, *rest in _rows(connection, "trajectories"):
        books.trajectories.setdefault(uid, {})[traj_uid] = _trajectory_row(uid, traj_uid, *rest)
    totals = load_totals(connection)
    books.kept = totals.pop(("trained", ""), books.kept)
    books.lost = {reason: tally for (state, reason), tally in totals.items() if state == "dropped"}
    books.taken_out = {reason: tally for (state, reason), tally in totals.items() if state == "taken out"}
    return books


def load_finished(connection: sqlite3.Connection) -> IntervalSet:
    return IntervalSet(_rows(connection, "finished", "ORDER BY start"))


def load_totals(connection: sqlite3.Connection) -> dict[tuple[str, str], Tally]:
    """(trained, ""), (dropped, reason) or (taken out, filter) -> sums over finished groups, or over trajectories of them."""
    return {(state, reason): Tally(*sums) for state, reason, *sums in _rows(connection, "totals")}


def load_counters(connection: sqlite3.Connection) -> Counters | None:
    found: dict[str, Any] = dict(_rows(connection, "counters"))
    return Counters(**found) if found else None


def load_history(connection: sqlite3.Connection) -> tuple[int, int]:
    """Lines of the history that were committed, and the seal of the last one."""
    return next(((lines, chain) for _, lines, chain in _rows(connection, "history")), (0, 0))


def _trajectory_row(*row: Any) -> TrajectoryRow:
    *before, spans, hops_done, tries, passes, reason = row
    values: list[Any] = [*before, tuple(Span(*span) for span in msgspec.json.decode(spans)), hops_done, tries, passes, reason]
    return TrajectoryRow(*values)


def _timeline_row(*row: Any) -> TimelineRow:
    *others, hops, policy, least_left = row
    values: list[Any] = [*others, tuple(msgspec.json.decode(hops)), policy, least_left]
    return TimelineRow(*values)


def _ints(text: str) -> tuple[int, ...]:
    return msgspec.json.decode(text, type=tuple[int, ...])


def _rows(connection: sqlite3.Connection, table: str, order: str = "") -> list[Row]:
    return list(connection.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table} {order}"))
