"""The tables of a ledger, their version, and the way from an older one.

    application_id   says that an SQLite file is a ledger
    user_version     of the tables: TABLES_1, then MIGRATIONS[k] makes version k + 1 of version k; a new file goes the same way
    seal             of every row: CRC-32 over its other values, in their order; SQLite itself notices no flipped bit

A migration is a few SQL statements; rows are checked by their seals before it and sealed anew after it, all in one transaction.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...errors import LedgerError

APPLICATION = 0x524C464C  # "RLFL"

TABLES_1 = """
CREATE TABLE groups (
    uid INTEGER PRIMARY KEY, tag INTEGER NOT NULL, state TEXT NOT NULL, batch INTEGER NOT NULL, timeline INTEGER NOT NULL,
    hops_done INTEGER NOT NULL, version INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, seal INTEGER NOT NULL
) STRICT;
CREATE TABLE trajectories (
    uid INTEGER NOT NULL, traj_uid INTEGER NOT NULL, attempt INTEGER NOT NULL, version_tag INTEGER NOT NULL, state TEXT NOT NULL,
    engine TEXT NOT NULL, rows INTEGER NOT NULL, spans TEXT NOT NULL, hops_done INTEGER NOT NULL, seal INTEGER NOT NULL,
    PRIMARY KEY (uid, traj_uid)
) STRICT, WITHOUT ROWID;
CREATE TABLE batches (
    timeline INTEGER NOT NULL, batch INTEGER NOT NULL, state TEXT NOT NULL, groups TEXT NOT NULL, seal INTEGER NOT NULL,
    PRIMARY KEY (timeline, batch)
) STRICT, WITHOUT ROWID;
CREATE TABLE evaluations (
    due INTEGER PRIMARY KEY, state TEXT NOT NULL, timeline INTEGER NOT NULL, version INTEGER NOT NULL, score REAL, seal INTEGER NOT NULL
) STRICT;
CREATE TABLE timelines (
    timeline INTEGER PRIMARY KEY, version INTEGER NOT NULL, n INTEGER NOT NULL, groups_per_batch INTEGER NOT NULL,
    max_lag INTEGER NOT NULL, last INTEGER NOT NULL, hops TEXT NOT NULL, seal INTEGER NOT NULL
) STRICT;
CREATE TABLE saved (
    newest INTEGER PRIMARY KEY CHECK (newest = 1), timeline INTEGER NOT NULL, version INTEGER NOT NULL, seal INTEGER NOT NULL
) STRICT;
CREATE TABLE pass_rates (
    row INTEGER PRIMARY KEY, tries INTEGER NOT NULL, passes INTEGER NOT NULL, version INTEGER NOT NULL, seal INTEGER NOT NULL
) STRICT;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL, seal INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE finished (start INTEGER PRIMARY KEY, stop INTEGER NOT NULL, seal INTEGER NOT NULL) STRICT;
CREATE TABLE totals (
    state TEXT NOT NULL, reason TEXT NOT NULL, groups INTEGER NOT NULL, seal INTEGER NOT NULL, PRIMARY KEY (state, reason)
) STRICT, WITHOUT ROWID;
"""

SUMS = ("landed", "unfinished", "tokens", "tries", "passes")
MIGRATIONS = {
    1: """
        ALTER TABLE timelines ADD COLUMN policy TEXT NOT NULL DEFAULT 'wait';
        CREATE TABLE history (newest INTEGER PRIMARY KEY CHECK (newest = 1), lines INTEGER NOT NULL, chain INTEGER NOT NULL,
            seal INTEGER NOT NULL) STRICT
    """,
    2: """
        ALTER TABLE pass_rates RENAME TO newest_pass_rates;
        CREATE TABLE pass_rates (row INTEGER NOT NULL, tries INTEGER NOT NULL, passes INTEGER NOT NULL, version INTEGER NOT NULL,
            seal INTEGER NOT NULL, PRIMARY KEY (row, version)) STRICT, WITHOUT ROWID;
        INSERT INTO pass_rates SELECT row, tries, passes, version, seal FROM newest_pass_rates;
        DROP TABLE newest_pass_rates
    """,
    3: ";".join(
        f"ALTER TABLE {table} ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0"
        for table, columns in (("groups", SUMS), ("totals", SUMS), ("trajectories", ("tries", "passes")))
        for column in columns
    ),
    4: """
        ALTER TABLE trajectories ADD COLUMN reason TEXT NOT NULL DEFAULT '';
        ALTER TABLE timelines ADD COLUMN least_left INTEGER NOT NULL DEFAULT 0
    """,
}
VERSION = 1 + len(MIGRATIONS)


def seal(values: Sequence[Any]) -> int:
    return zlib.crc32(_encode(values))


_encode = msgspec.msgpack.Encoder().encode


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file."""
    steps = ";".join((TABLES_1, *(MIGRATIONS[step] for step in range(1, VERSION))))
    connection.executescript(f"BEGIN; {steps}; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;")


def check_version(connection: sqlite3.Connection, path: Path, name: str = "main") -> int:
    """The version of the tables in a file. Raises LedgerError for what is no ledger, or one that only a newer rlflow reads."""
    (application,) = connection.execute(f"PRAGMA {name}.application_id").fetchone()
    (version,) = connection.execute(f"PRAGMA {name}.user_version").fetchone()
    if application != APPLICATION:
        raise LedgerError(f"{path} is no ledger of a run: it is an SQLite file of application {application:#x}")
    if version > VERSION:
        raise LedgerError(
            f"{path} has tables of version {version}, this rlflow knows those up to {VERSION}: the run was written by a newer rlflow; "
            f"resume it with that one"
        )
    return int(version)


def check_rows(connection: sqlite3.Connection, path: Path, name: str = "main") -> None:
    """Every page can be read and every row is sealed. Raises LedgerError that names the table and the row."""
    faults = [fault for (fault,) in connection.execute(f"PRAGMA {name}.quick_check(3)") if fault != "ok"]
    if faults:
        raise LedgerError(f"{path} is damaged: {'; '.join(faults)}")
    for table, columns in _tables(connection, name):
        for *values, found in connection.execute(f"SELECT {', '.join(columns)}, seal FROM {name}.{table}"):
            if seal(values) != found:
                said = ", ".join(f"{name}={value!r}" for name, value in zip(columns, values, strict=True))
                raise LedgerError(f"{path} is damaged: a row of table {table} is not the one that was written: {said}")


@contextmanager
def migrated(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """An older file as one of this version: for good when the block ends, as it was after an error. Its rows must have been checked."""
    version = check_version(connection, path)
    if version == VERSION:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in range(version, VERSION):
            for statement in MIGRATIONS[step].split(";"):
                connection.execute(statement)
        _seal_all(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _seal_all(connection: sqlite3.Connection) -> None:
    for table, columns in _tables(connection):
        names, marks = ", ".join(columns), ", ".join("?" * (len(columns) + 1))
        rows = connection.execute(f"SELECT {names} FROM {table}").fetchall()
        connection.execute(f"DELETE FROM {table}")
        connection.executemany(f"INSERT INTO {table} ({names}, seal) VALUES ({marks})", [(*row, seal(row)) for row in rows])


def _tables(connection: sqlite3.Connection, name: str = "main") -> Iterable[tuple[str, list[str]]]:
    """Each table of the database attached under this name, and its columns but the seal."""
    tables = [table for (table,) in connection.execute(f"SELECT name FROM {name}.sqlite_schema WHERE type = 'table' ORDER BY name")]
    for table in tables:
        columns = [column for _, column, *_ in connection.execute(f"PRAGMA {name}.table_info({table})")]
        yield table, [column for column in columns if column != "seal"]
