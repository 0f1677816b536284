"""The ledger of a run, in the process of the controller.

    create | open ──▶ commit(state.journal) ... ──▶ close        one writer: the lock of the run folder is taken first
    read_books                                                   anybody, at any time

SQLite in WAL mode: a commit is an append to the log, which checkpoint.py copies into the file. With ``durable`` every commit waits for the
disk; without it a power cut may undo the last ones, a kill never does.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import msgspec

from ...errors import LedgerError
from ..controller.books import Books
from ..controller.journal import BatchRow, Change, Counters, EvaluationRow, Finished, PassRate, Pending
from ..controller.tally import Tally
from . import schema, tables
from .checkpoint import Checkpointer
from .history import History
from .lock import RunLock
from .tables import UPSERT, Row, sealed

FILE = "ledger.sqlite"
PAGE = 1024  # bytes: a commit writes whole pages, and its rows are small
LOG_PAGES = 16384  # that the log keeps when it begins anew
CACHE = 64  # MiB
SUMS = ", ".join(f"sum({column})" for column in schema.SUMS)
TOKENS = "(SELECT sum(json_extract(value, '$[2]') - json_extract(value, '$[1]')) FROM json_each(spans))"
TAKEN_OUT = (
    f"SELECT 'taken out', reason, 0, count(*), 0, ifnull(sum({TOKENS}), 0), sum(tries), sum(passes) FROM trajectories "
    "WHERE state = 'dropped' AND uid IN (SELECT value FROM json_each(?)) GROUP BY reason"
)
"""In the order of a Tally: what filters took out of these groups."""


class Ledger:
    """Holds the lock of its run from making to ``close``. Everything that goes wrong with the file is a LedgerError that names it."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: RunLock) -> None:
        self.path = folder / FILE
        self._connection, self._lock = connection, lock
        self._checkpointer = Checkpointer(self.path, connection)
        self._finished = tables.load_finished(connection)
        self._totals = tables.load_totals(connection)
        self._counters = _fields(tables.load_counters(connection))
        self._noted = tables.load_history(connection)
        self._history = History(folder, *self._noted, tables.load(connection))
        self.lost_lines = self._history.lost
        """Lines of the history that the ledger knows of and that were not there."""

    @staticmethod
    def create(folder: Path, *, durable: bool = False) -> Ledger:
        """An empty ledger in the folder of a new run. Raises UsageError if another process holds the run, LedgerError if it has one."""
        path = folder / FILE
        with ExitStack() as undo, _named(path):
            undo.callback((lock := RunLock(folder)).release)
            if path.exists():
                raise LedgerError(f"{path} exists already: go on with the run by `rlflow resume {folder}`")
            connection = undo.enter_context(closing(_connect(path, durable)))
            schema.create(connection)
            ledger = Ledger(folder, connection, lock)
            undo.pop_all()
            return ledger

    @staticmethod
    def open(folder: Path, *, durable: bool = False) -> Ledger:
        """The ledger of a run that is to go on; an older one is migrated.

        Raises UsageError if another process holds the run, LedgerError for a file that is missing, damaged or of a newer version, and for
        another history; then an older ledger is as it was.
        """
        path = folder / FILE
        _must_exist(path)
        with ExitStack() as undo, _named(path):
            undo.callback((lock := RunLock(folder)).release)
            connection = undo.enter_context(closing(_connect(path, durable)))
            schema.check_version(connection, path)
            schema.check_rows(connection, path)
            with schema.migrated(connection, path):
                ledger = Ledger(folder, connection, lock)
                undo.callback(ledger.close)
            undo.pop_all()
            return ledger

    def commit(self, changes: Sequence[Change]) -> None:
        """One transaction: all of it is there when this returns, or none of it ever. Raises LedgerError; then the ledger is closed."""
        if not changes:
            return
        try:
            with _named(self.path):
                self._checkpointer.make_room()  # before: what it raises is of a transaction that is not there
                self._history.note(changes)
                self._connection.execute("BEGIN IMMEDIATE")
                self._apply(changes)
                self._note_history()
                self._connection.execute("COMMIT")
        except BaseException:  # what is in memory here may be ahead of the file now
            self.close()
            raise

    def trained(self, timeline: int, batch: int, groups: Sequence[tuple[int, ...]]) -> None:
        """Every worker has finished this batch; said before the event of it is decided.

        groups: of what was really trained: (uid, trajectories, oldest version that sampled a token of them; -1: not known).
        """
        with _named(self._history.path):
            self._history.trained(timeline, batch, groups)

    def load(self) -> Books:
        with _named(self.path):
            return tables.load(self._connection)

    def close(self) -> None:
        self._checkpointer.close()
        self._connection.close()
        self._history.close()
        self._lock.release()

    def _note_history(self) -> None:
        now = (self._history.lines, self._history.chain)
        if now != self._noted:
            self._connection.execute(UPSERT["history"], sealed(1, *now))
            self._noted = now

    # --- one transaction ----------------------------------------------------------------------------------------------------------
    def _apply(self, changes: Iterable[Change]) -> None:
        """Rows of one table in one statement; deletions of groups come between those before and those after them."""
        rows: defaultdict[str, list[Row]] = defaultdict(list)
        for change in changes:
            if (found := tables.STREAMED.get(type(change))) is not None and not tables.is_forgotten(change):
                table, row_of = found
                rows[table].append(row_of(change))
            else:
                self._put(rows)
                self._apply_one(change)
        self._put(rows)

    def _put(self, rows: defaultdict[str, list[Row]]) -> None:
        for table, of_table in rows.items():
            self._connection.executemany(UPSERT[table], of_table)
        rows.clear()

    def _apply_one(self, change: Change) -> None:
        match change:
            case Finished(uids):
                self._finish(uids)
            case Pending(uids):
                self._delete(uids)
            case BatchRow(timeline, batch, "covered" | "undone"):
                self._connection.execute("DELETE FROM batches WHERE timeline = ? AND batch = ?", (timeline, batch))
            case BatchRow():
                self._connection.execute(UPSERT["batches"], tables.batch_row(change))
            case EvaluationRow(due, "covered" | "undone"):
                self._connection.execute("DELETE FROM evaluations WHERE due = ?", (due,))
            case EvaluationRow():
                self._connection.execute(UPSERT["evaluations"], tables.evaluation_row(change))
            case PassRate(row, version=version):
                self._connection.execute("DELETE FROM pass_rates WHERE row = ? AND version = ?", (row, version))
            case Counters():
                self._count(change)
            case _:
                raise AssertionError(f"no table for {change}")

    def _finish(self, uids: tuple[int, ...]) -> None:
        """Rows become an entry of the intervals and one of the counts."""
        text = msgspec.json.encode(uids)
        counted = self._connection.execute(
            f"SELECT state, iif(state = 'trained', '', reason), count(*), {SUMS} FROM groups "
            "WHERE uid IN (SELECT value FROM json_each(?)) GROUP BY 1, 2", (text,)
        ).fetchall()  # fmt: skip
        counted += self._connection.execute(TAKEN_OUT, (text,)).fetchall()
        for state, reason, *sums in counted:
            total = self._totals.setdefault((state, reason), Tally())
            total.add(Tally(*sums))
            self._connection.execute(UPSERT["totals"], sealed(state, reason, *astuple(total)))
        self._delete(uids)
        self._fold(uids)

    def _fold(self, uids: Iterable[int]) -> None:
        before = dict(self._finished)
        for uid in uids:
            assert self._finished.add(uid), f"prompt {uid} is finished twice"
        after = dict(self._finished)
        self._connection.executemany("DELETE FROM finished WHERE start = ?", [(start,) for start in before.keys() - after.keys()])
        changed = [sealed(start, stop) for start, stop in after.items() if before.get(start) != stop]
        self._connection.executemany(UPSERT["finished"], changed)

    def _delete(self, uids: tuple[int, ...]) -> None:
        text = msgspec.json.encode(uids)
        deleted = self._connection.execute("DELETE FROM groups WHERE uid IN (SELECT value FROM json_each(?))", (text,)).rowcount
        assert deleted == len(uids), f"{len(uids)} groups are to be deleted, {deleted} have a row: {uids}"
        self._connection.execute("DELETE FROM trajectories WHERE uid IN (SELECT value FROM json_each(?))", (text,))

    def _count(self, counters: Counters) -> None:
        """Only what changed."""
        fields = _fields(counters)
        changed = [sealed(name, value) for name, value in fields.items() if self._counters.get(name) != value]
        self._connection.executemany(UPSERT["counters"], changed)
        self._counters = fields


def read_books(folder: Path) -> Books:
    """What the ledger of a run holds now, whoever works on it; an older one is migrated in a copy. Raises LedgerError as ``open``."""
    path = folder / FILE
    _must_exist(path)
    with _named(path), closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        with closing(sqlite3.connect(_read_only(path), uri=True)) as there:
            there.backup(copy)
        schema.check_version(copy, path)
        schema.check_rows(copy, path)
        with schema.migrated(copy, path):
            return tables.load(copy)


@contextmanager
def reading(folder: Path, connection: sqlite3.Connection) -> Iterator[None]:
    """The ledger of a run, as it is now and checked, attached to an empty database as `ledger`; nobody is kept from writing."""
    path = folder / FILE
    _must_exist(path)
    with _named(path):
        connection.execute("ATTACH ? AS ledger", (_read_only(path),))
        connection.execute("BEGIN")
        if schema.check_version(connection, path, "ledger") < schema.VERSION:
            raise LedgerError(f"{path} was written by an older rlflow: `rlflow resume {folder}` brings it to this version")
        schema.check_rows(connection, path, "ledger")
        for table, columns in tables.COLUMNS.items():  # their names may be damaged too
            connection.execute(f"SELECT {', '.join(columns)} FROM ledger.{table} LIMIT 0")
    yield


def _connect(path: Path, durable: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=64)
    try:
        for pragma in (
            f"page_size = {PAGE}",
            "journal_mode = WAL",
            f"synchronous = {'FULL' if durable else 'NORMAL'}",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {LOG_PAGES * PAGE}",
            f"cache_size = {-1024 * CACHE}",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _read_only(path: Path) -> str:
    return f"{path.resolve().as_uri()}?mode=ro"


def _fields(counters: Counters | None) -> dict[str, Any]:
    return {} if counters is None else msgspec.structs.asdict(counters)


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise LedgerError(f"{path} is missing: {path.parent} is no folder of a run, or the run was killed before it began")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What SQLite says, with the file that it says it of."""
    try:
        yield
    except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:  # the latter: of a flipped bit in a text
        raise LedgerError(f"{path}: {error}") from error
