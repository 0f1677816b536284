"""Ledgers that an older rlflow wrote: read as they are, brought to this version when their run goes on, or left as they were."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from ledger_world import LedgerWorld, closed_ledger

from rlflow.errors import LedgerError
from rlflow.run.audit import audit
from rlflow.run.controller.books import Books
from rlflow.run.controller.ids import Span
from rlflow.run.controller.journal import (
    BatchRow,
    Counters,
    EvaluationRow,
    Finished,
    GroupRow,
    PassRate,
    SavedRow,
    TimelineRow,
    TrajectoryRow,
)
from rlflow.run.controller.schedule import Config, Hop
from rlflow.run.controller.tally import Tally
from rlflow.run.ledger import FILE, Ledger, read_books
from rlflow.run.ledger import schema as ledger_schema

GROUP = GroupRow(3, 0, "running", -1, 0, 0)
LANDED = TrajectoryRow(3, 1, 2, 0, "landed", "engine.1", 2, (Span(0, 0, 4), Span(1, 4, 6)), 1)


def older_tables(monkeypatch: pytest.MonkeyPatch, migration: str) -> None:
    """This rlflow is the one after the one that wrote the file."""
    monkeypatch.setitem(ledger_schema.MIGRATIONS, ledger_schema.VERSION, migration)
    monkeypatch.setattr(ledger_schema, "VERSION", ledger_schema.VERSION + 1)


OLD_CONFIG = Config(
    n=2, groups_per_batch=2, max_lag=2, last=99, engines=("e", "f"), prompts=60, save_every=3, queue=1, oversample=1,
    hops=(Hop("filter", "group"),), max_drops=1000, max_save_attempts=1000,
)  # fmt: skip
OLDER = [
    TimelineRow(0, 0, 2, 2, 1, 9, ("filter",), policy="wait"),
    *(GroupRow(uid, 0, "trained", 0, 0, 1, 0) for uid in (0, 1)),
    GroupRow(2, 0, "dropped", -1, 0, 0, 0, "stale", 'said: "nö"'),
    SavedRow(0, 1),
    BatchRow(0, 0, "trained", (0, 1)),
    Finished((0, 1, 2)),
    GroupRow(3, 1, "consumed", 1, 0, 1),
    GroupRow(4, 1, "running", -1, 0, 0),
    TrajectoryRow(3, 0, 0, 1, "landed", "engine.1", 2, (Span(1, 0, 4), Span(2, 4, 6)), 0),
    TrajectoryRow(4, 1, 2, 1, "queued", "", 0, (), 0),
    BatchRow(0, 1, "training", (3,)),
    EvaluationRow(1, "scored", 0, 1, 0.25),
    EvaluationRow(2, "due", 0),
    PassRate(7, 8, 3, 1),
    Counters(0, 0, 2, 1, 40),
]
"""What the file of version 1 beside this test was written of; it had no policy and no history."""


def test_a_file_of_the_first_version_is_migrated_and_written_on(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("ledger_v1.sqlite"), tmp_path / FILE)
    books = Books()
    books.apply(OLDER)
    assert read_books(tmp_path) == books
    assert (tmp_path / FILE).read_bytes() == Path(__file__).with_name("ledger_v1.sqlite").read_bytes()  # `rlflow runs` changes nothing
    ledger = Ledger.open(tmp_path)
    assert ledger.load() == books
    ledger.commit([TimelineRow(1, 1, 2, 2, 1, 9, policy="drop")])
    ledger.close()
    assert read_books(tmp_path).timelines == {0: OLDER[0], 1: TimelineRow(1, 1, 2, 2, 1, 9, policy="drop")}


OLD_FILES = {1: ("ledger_v1.sqlite", None)} | {version: (f"ledger_v{version}.sqlite", "ledger_v3.jsonl") for version in (2, 3, 4)}
"""Of each older version a file, and the history beside it (that of version 3 is the same as those of 2 and 4); version 1 had none."""


def old_run(folder: Path, version: int) -> None:
    file, history = OLD_FILES[version]
    shutil.copy(Path(__file__).with_name(file), folder / FILE)
    if history is not None:
        shutil.copy(Path(__file__).with_name(history), folder / "history.jsonl")


def test_there_is_a_file_of_each_older_version() -> None:
    assert sorted(OLD_FILES) == list(range(1, ledger_schema.VERSION))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_older_file_with_a_history_passes_the_audit_and_goes_on(tmp_path: Path, version: int) -> None:
    """36 prompts were trained in 18 batches, 30 of them are covered, when it was killed."""
    old_run(tmp_path, version)
    Ledger.open(tmp_path).close()
    assert audit(tmp_path).says() == (
        "36 prompts trained in 18 batches, 17 dropped, 7 live, 0 to be drawn again, on 5 timelines: nothing lost, doubled or skipped"
    )
    books = read_books(tmp_path)
    assert (books.kept, books.lost) == (Tally(groups=30), {"oversampled": Tally(groups=14), "filter": Tally(groups=1)})
    world = LedgerWorld(tmp_path, seed=0)
    assert world.live(OLD_CONFIG, 10**6) == "done"
    assert audit(tmp_path).faults == ()
    assert len(read_books(tmp_path).finished) == 60


def test_of_a_file_from_before_the_history_the_audit_says_what_it_cannot_know(tmp_path: Path) -> None:
    old_run(tmp_path, 1)
    Ledger.open(tmp_path).close()
    said = "prompts 0 to 2 are finished in the ledger, and no line says how (of a run that began before rlflow kept a history, none can)"
    assert said in audit(tmp_path).says()


def test_an_older_file_gets_its_columns_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed_ledger(tmp_path, [GROUP, LANDED])
    older_tables(monkeypatch, "ALTER TABLE groups ADD COLUMN policy TEXT NOT NULL DEFAULT 'wait'; CREATE INDEX by_tag ON groups (tag)")
    assert "older rlflow: `rlflow resume" in audit(tmp_path).says()
    connection = sqlite3.connect(path, isolation_level=None)
    with ledger_schema.migrated(connection, path):
        pass
    ledger_schema.check_rows(connection, path)
    assert connection.execute("SELECT uid, policy FROM groups").fetchall() == [(3, "wait")]
    assert connection.execute("PRAGMA user_version").fetchone() == (ledger_schema.VERSION,)
    connection.close()


def test_a_migration_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_ledger(tmp_path, [GROUP])
    with monkeypatch.context() as patch:
        older_tables(patch, "ALTER TABLE groups ADD COLUMN policy TEXT; ALTER TABLE absent ADD COLUMN x INTEGER")
        with pytest.raises(LedgerError, match="no such table: absent"):
            Ledger.open(tmp_path)
    assert read_books(tmp_path).groups == {3: GROUP}


def test_rows_are_checked_before_they_are_sealed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed_ledger(tmp_path, [GROUP])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE groups SET tag = 9")
    connection.close()
    older_tables(monkeypatch, "CREATE INDEX by_tag ON groups (tag)")
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.open(tmp_path)
