"""The ledger: what it loads is what the model of it holds; what cannot be read or written is said."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_world import closed_ledger
from random_journals import BASES, Writer

from rlflow.errors import LedgerError, UsageError
from rlflow.run.controller import journal
from rlflow.run.controller.books import Books
from rlflow.run.controller.ids import Span
from rlflow.run.controller.journal import (
    BatchRow,
    Counters,
    Finished,
    GroupRow,
    Pending,
    TimelineRow,
    TrajectoryRow,
)
from rlflow.run.controller.tally import Tally
from rlflow.run.ledger import FILE, Ledger, checkpoint, holder, read_books
from rlflow.run.ledger import schema as ledger_schema

GROUP = GroupRow(3, 0, "running", -1, 0, 0)
LANDED = TrajectoryRow(3, 1, 2, 0, "landed", "engine.1", 2, (Span(0, 0, 4), Span(1, 4, 6)), 1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger.create(tmp_path)
    yield made
    made.close()


def dropped(uid: int, reason: str) -> GroupRow:
    return GroupRow(uid, 0, "dropped", -1, 0, 0, 0, reason, "why")


def trained(uid: int) -> GroupRow:
    return GroupRow(uid, 0, "trained", 0, 0, 0, 0)


@given(seed=st.integers(0, 2**32), base=st.sampled_from(BASES), transactions=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_it_loads_what_the_books_hold_after_any_journals(
    tmp_path_factory: pytest.TempPathFactory, seed: int, base: int, transactions: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rng = random.Random(seed)
    writer, books, ledger = Writer(rng, base), Books(), Ledger.create(folder)
    for _ in range(transactions):
        changes = writer.transaction()
        ledger.commit(changes)
        books.apply(changes)
        if rng.random() < 0.05:  # what it keeps in memory comes from the file
            ledger.close()
            ledger = Ledger.open(folder)
    assert ledger.load() == books
    assert read_books(folder) == books
    ledger.close()


def test_a_landed_trajectory_in_sql(ledger: Ledger, tmp_path: Path) -> None:
    ledger.commit([GROUP, LANDED])
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("SELECT state, spans FROM trajectories WHERE uid = 3").fetchall() == [("landed", "[[0,0,4],[1,4,6]]")]


def test_finished_groups_become_intervals_and_counts(ledger: Ledger, tmp_path: Path) -> None:
    ledger.commit([trained(0), trained(1), dropped(2, "stale"), trained(4), dropped(5, "trained"), GROUP, LANDED])
    ledger.commit([Finished((0, 1, 4)), Finished((2, 5))])
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("SELECT start, stop FROM finished ORDER BY start").fetchall() == [(0, 3), (4, 6)]
        assert connection.execute("SELECT uid FROM groups").fetchall() == [(3,)]
    books = ledger.load()
    assert (books.kept, books.lost) == (Tally(groups=3), {"stale": Tally(groups=1), "trained": Tally(groups=1)})


def test_the_ledger_does_not_grow_with_the_groups_it_has_finished(ledger: Ledger, tmp_path: Path) -> None:
    for batch in range(800):
        ledger.commit(
            [trained(batch), TrajectoryRow(batch, 0, 0, 0, "landed", "engine", 1, (), 0), BatchRow(0, batch, "trained", (batch,))]
        )
        ledger.commit([Finished((batch,)), BatchRow(0, batch, "covered", (batch,))])
    ledger.close()
    assert (tmp_path / FILE).stat().st_size < 64 * 1024


def test_only_groups_that_have_a_row_are_deleted(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="2 groups are to be deleted, 1 have a row"):
        ledger.commit([GROUP, Pending((3, 4))])


def test_columns_are_the_fields_of_the_changes(ledger: Ledger, tmp_path: Path) -> None:
    """A new field needs a column, and a migration that adds it to the files that are there: see MIGRATIONS."""
    tables = {"GroupRow": "groups", "TrajectoryRow": "trajectories", "BatchRow": "batches", "EvaluationRow": "evaluations"}
    tables |= {"TimelineRow": "timelines", "PassRate": "pass_rates", "SavedRow": "saved"}
    with sqlite3.connect(tmp_path / FILE) as connection:
        for name, table in tables.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            assert [c for c in columns if c not in ("newest", "seal")] == list(getattr(journal, name).__struct_fields__), table
    assert {change.__name__ for change in get_args(journal.Change)} == {*tables, "Counters", "Finished", "Pending"}


def test_a_counter_that_an_older_file_has_no_row_of_takes_its_default(ledger: Ledger, tmp_path: Path) -> None:
    ledger.commit([Counters(0, 1, 2, 3, source_end=9)])
    ledger.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("DELETE FROM counters WHERE name = 'source_end'")
    connection.close()
    assert read_books(tmp_path).counters == Counters(0, 1, 2, 3, source_end=-1)


# --- one at a time ----------------------------------------------------------------------------------------------------------------
HOLD = """
import pathlib, sys, time
from rlflow.run.ledger import Ledger
ledger = Ledger.open(pathlib.Path(sys.argv[1]))
print(flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    Ledger.create(tmp_path).close()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            assert holder(tmp_path) == other.pid
            with pytest.raises(UsageError, match=rf"is being worked on by process {other.pid}: .* kill -INT {other.pid}"):
                Ledger.open(tmp_path)
            with pytest.raises(UsageError, match=f"process {other.pid}"):
                Ledger.create(tmp_path)
        finally:
            other.kill()
    assert holder(tmp_path) is None
    Ledger.open(tmp_path).close()  # however it ended


def test_what_cannot_be_opened_is_not_held(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database")
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path)
    assert holder(tmp_path) is None


# --- kills ------------------------------------------------------------------------------------------------------------------------
COMMIT = """
import pathlib, sys
from rlflow.run.ledger import Ledger
from rlflow.run.controller.journal import Counters, Finished, GroupRow, TrajectoryRow
ledger = Ledger.open(pathlib.Path(sys.argv[1]))
k = ledger.load().counters
k = k.evaluated if k else 0
while True:  # transaction k: group k comes with 8 trajectories, group k - 3 is finished
    k += 1
    changes = [GroupRow(k, k, "trained", k, 0, 0, k)]
    changes += [TrajectoryRow(k, i, 0, k, "landed", "engine", 1, (), 0) for i in range(8)]
    if k > 3: changes.append(Finished((k - 3,)))
    ledger.commit([*changes, Counters(0, 0, 0, k)])
    print(k, flush=True)
"""


def test_a_kill_leaves_whole_transactions_and_all_that_were_committed(tmp_path: Path) -> None:
    Ledger.create(tmp_path).close()
    rng, seen = random.Random(0), 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", COMMIT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.random() * 0.2)
            os.kill(process.pid, signal.SIGKILL)
            told = [int(line) for line in process.stdout.read().split("\n")[:-1]]
        books = read_books(tmp_path)
        assert books.counters is not None
        k = books.counters.evaluated
        assert k >= max([seen, *told])
        assert sorted(books.groups) == list(range(max(1, k - 2), k + 1))
        assert {uid: len(of) for uid, of in books.trajectories.items()} == dict.fromkeys(books.groups, 8)
        assert (list(books.finished), books.kept.groups) == ([(1, k - 2)] if k > 3 else [], max(0, k - 3))
        seen = k
    assert seen > 10


# --- files that are no ledger -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("opened", [Ledger.open, read_books])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("missing", "is missing: .* is no folder of a run"),
        ("text", "file is not a database"),
        ("empty", "is no ledger of a run"),
        ("half", "malformed|damaged"),
        ("other", "is no ledger of a run: it is an SQLite file of application 0x0"),
        ("newer", rf"has tables of version {ledger_schema.VERSION + 1}, this rlflow knows those up to {ledger_schema.VERSION}"),
        ("row", r"damaged: a row of table trajectories is not the one that was written: uid=3, traj_uid=1, attempt=2, .*rows=5"),
    ],
)
def test_a_file_that_is_no_whole_ledger_is_refused(tmp_path: Path, opened: object, fault: str, said: str) -> None:
    path = closed_ledger(tmp_path, [GROUP, LANDED])
    if fault == "missing":
        path.unlink()
    elif fault in ("text", "empty", "half"):
        path.write_bytes({"text": b"no database" * 99, "empty": b"", "half": path.read_bytes()[: path.stat().st_size // 2]}[fault])
    elif fault == "other":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE groups (uid INTEGER)")
        connection.close()
    else:
        statement = {"newer": f"PRAGMA user_version = {ledger_schema.VERSION + 1}", "row": "UPDATE trajectories SET rows = 5"}[fault]
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
    with pytest.raises(LedgerError, match=said) as error:
        opened(tmp_path)  # type: ignore[operator]
    assert str(path) in str(error.value)


def test_no_flipped_bit_is_read_as_another_ledger(tmp_path: Path) -> None:
    path = closed_ledger(tmp_path, [GROUP, LANDED, BatchRow(0, 1, "trained", (1, 2)), Counters(0, 1, 2, 3)])
    books, good = read_books(tmp_path), path.read_bytes()
    rng, refused = random.Random(0), 0
    for at in (*range(0, 1024, 4), *(rng.randrange(len(good)) for _ in range(300))):  # all of the page with the schema's root
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
        try:
            assert read_books(tmp_path) == books
        except LedgerError:
            refused += 1
    assert refused > 50


def test_a_run_that_has_a_ledger_gets_no_second_one(tmp_path: Path) -> None:
    closed_ledger(tmp_path, [GROUP])
    with pytest.raises(LedgerError, match="exists already: go on with the run by `rlflow resume"):
        Ledger.create(tmp_path)


def test_a_disk_without_room_is_said_and_leaves_the_last_transaction(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path)
    ledger.commit([GROUP])
    ledger._connection.execute("PRAGMA max_page_count = 60")
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: database or disk is full"):
        ledger.commit([GroupRow(uid, 0, "running", -1, 0, 0, detail="x" * 500) for uid in range(10, 500)])
    assert holder(tmp_path) is None
    assert read_books(tmp_path).groups == {3: GROUP}


@pytest.mark.parametrize(("durable", "level"), [(False, 1), (True, 2)])
def test_how_far_a_commit_waits_for_the_disk(tmp_path: Path, durable: bool, level: int) -> None:
    ledger = Ledger.create(tmp_path, durable=durable)
    assert ledger._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert ledger._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ledger.close()


# --- the log ----------------------------------------------------------------------------------------------------------------------
def test_the_log_is_copied_into_the_file_beside_the_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "COMMITS", 8)
    ledger = Ledger.create(tmp_path)
    for uid in range(100):
        ledger.commit([GroupRow(uid, 0, "running", -1, 0, 0)])
    ledger._checkpointer.close()
    with closing(sqlite3.connect(f"file:{tmp_path / FILE}?immutable=1", uri=True)) as without_log:
        (copied,) = without_log.execute("SELECT count(*) FROM groups").fetchone()
    assert 7 <= copied <= 100  # a copy begins before the eighth commit
    assert len(ledger.load().groups) == 100
    ledger.close()


def test_a_log_that_no_copy_keeps_up_with_is_copied_by_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "COMMITS", 4)
    monkeypatch.setattr(checkpoint.Checkpointer, "_beside", lambda self: setattr(self, "_pages", checkpoint.MOST_PAGES + 1))
    ledger = Ledger.create(tmp_path)
    for number in range(2000):
        ledger.commit([GroupRow(number % 3, 0, "running", -1, 0, 0)])
    assert (tmp_path / f"{FILE}-wal").stat().st_size < 100 * 1024
    ledger.close()


def test_a_log_that_cannot_be_copied_is_said_by_a_commit_of_which_nothing_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(connection: sqlite3.Connection) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(checkpoint, "COMMITS", 3)
    monkeypatch.setattr(checkpoint, "_copy", full)
    ledger, committed = Ledger.create(tmp_path), dict[int, GroupRow]()
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: database or disk is full"):  # noqa: PT012
        for uid in range(100):
            ledger.commit([row := GroupRow(uid, 0, "running", -1, 0, 0)])
            committed[uid] = row
            if (thread := ledger._checkpointer._thread) is not None:
                thread.join()
    assert len(committed) == 5  # the third one let a thread try, the sixth one tried itself
    assert read_books(tmp_path).groups == committed


def test_lines_of_a_history_that_is_gone_are_counted(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path)
    ledger.commit([TimelineRow(0, 0, 2, 2, 1, 9), GroupRow(2, 0, "dropped", -1, 0, 0, 0, "stale", "late")])
    ledger.close()
    again = Ledger.open(tmp_path)
    assert again.lost_lines == 0
    again.close()
    (tmp_path / "history.jsonl").unlink()
    again = Ledger.open(tmp_path)
    assert again.lost_lines == 2
    again.close()


def test_a_history_that_finds_no_room_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a line would make every later line one that nobody can read."""
    ledger = Ledger.create(tmp_path)
    ledger.commit([TimelineRow(0, 0, 2, 2, 1, 9)])
    before, append = (tmp_path / "history.jsonl").read_bytes(), os.write
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", lambda file, data: append(file, data[:10]) if len(data) > 40 else 0)
        with pytest.raises(LedgerError, match="No space left on device"):
            ledger.trained(0, 0, [(0, 2, 0), (1, 2, 0), (2, 2, 0), (3, 2, 0)])
    assert (tmp_path / "history.jsonl").read_bytes() == before
    ledger.trained(0, 0, [(0, 2, 0)])
    ledger.commit([TimelineRow(0, 0, 2, 2, 1, 8)])
    ledger.close()
    again = Ledger.open(tmp_path)
    assert again.lost_lines == 0
    again.close()


def test_spans_are_json(tmp_path: Path) -> None:
    closed_ledger(tmp_path, [GROUP, LANDED])
    with sqlite3.connect(tmp_path / FILE) as connection:
        (text,) = connection.execute("SELECT spans FROM trajectories").fetchone()
    assert json.loads(text) == [[0, 0, 4], [1, 4, 6]]
