"""The history: a line for all that was trained and dropped, exactly as far as the ledger was committed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlflow.errors import LedgerError
from rlflow.run.controller.ids import Span
from rlflow.run.controller.journal import BatchRow, Change, Finished, GroupRow, Pending, TimelineRow, TrajectoryRow
from rlflow.run.ledger import FILE, Ledger
from rlflow.run.ledger import history as ledger_history

TIMELINE = TimelineRow(0, 0, 2, 1, 1, 9, policy="drop")
BEGIN = {"kind": "timeline", "timeline": 0, "version": 0, "n": 2, "max_lag": 1, "policy": "drop"}
DROP = {"kind": "dropped", "timeline": 0, "version": 0, "uid": 5, "reason": "stale"}


def dropped(uid: int, timeline: int = 0) -> GroupRow:
    return GroupRow(uid, 0, "dropped", -1, timeline, 0, 0, "stale", "too old")


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seal"} for line in found]


def written(folder: Path, *transactions: list[Change]) -> None:
    ledger = Ledger.create(folder)
    for changes in transactions:
        ledger.commit(changes)
    ledger.close()


def test_a_line_for_each_timeline_trained_batch_and_drop(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path)
    ledger.commit([TIMELINE])
    ledger.trained(0, 0, [(3, 2, 0), (4, 2, -1)])
    ledger.commit([GroupRow(3, 0, "trained", 0, 0, 0, 0), dropped(5)])
    ledger.close()
    assert lines(tmp_path) == [BEGIN, {"kind": "trained", "timeline": 0, "batch": 0, "groups": [[3, 2, 0], [4, 2, -1]]}, DROP]


def test_a_drop_that_is_written_again_is_one_drop(tmp_path: Path) -> None:
    written(tmp_path, [TIMELINE, dropped(5)], [dropped(5)])
    ledger = Ledger.open(tmp_path)
    ledger.commit([dropped(5)])
    ledger.commit([Pending((5,))])
    ledger.commit([dropped(5, timeline=1)])
    ledger.close()
    assert lines(tmp_path) == [BEGIN, DROP, DROP | {"timeline": 1}]


def test_what_was_never_committed_is_cut_when_the_run_goes_on(tmp_path: Path) -> None:
    written(tmp_path, [TIMELINE])
    ledger = Ledger.open(tmp_path)
    ledger.trained(0, 0, [(3, 2, 0)])  # and no commit after it: a kill
    ledger.close()
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"kind": "trai')
    ledger = Ledger.open(tmp_path)
    ledger.commit([dropped(5)])
    ledger.close()
    assert lines(tmp_path) == [BEGIN, DROP]


def test_lines_that_a_power_cut_took_are_written_again_from_the_rows(tmp_path: Path) -> None:
    rows = [TrajectoryRow(3, i, 0, 0, "landed", "e", 1, (Span(i + 4, 0, 2),), 0) for i in range(2)]
    written(tmp_path, [TIMELINE], [GroupRow(3, 0, "trained", 0, 0, 0, 0), *rows, BatchRow(0, 0, "trained", (3,)), dropped(5)])
    os.truncate(tmp_path / "history.jsonl", 10)
    Ledger.open(tmp_path).close()
    assert lines(tmp_path) == [BEGIN, {"kind": "trained", "timeline": 0, "batch": 0, "groups": [[3, 2, 4]]}, DROP]


def test_lines_are_on_the_disk_before_the_ledger_forgets_their_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, synced = Ledger.create(tmp_path), []
    monkeypatch.setattr(os, "fsync", synced.append)
    ledger.commit([TIMELINE, dropped(5)])
    assert synced == []
    ledger.commit([Finished((5,))])
    assert len(synced) == 1
    ledger.close()


def test_the_disk_is_waited_for_only_where_lines_have_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [TIMELINE, dropped(4), dropped(5)])
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    ledger = Ledger.open(tmp_path)
    counts = []
    for changes in ([Finished((4,))], [Finished((5,))], [dropped(6)], [Finished((6,))]):  # the first ones another process has written
        ledger.commit(changes)  # type: ignore[arg-type]
        counts.append(len(synced))
    ledger.close()
    assert counts == [1, 1, 1, 2]


def test_a_line_that_finds_no_room_is_an_error_and_one_that_goes_in_parts_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, write = Ledger.create(tmp_path), os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    ledger.commit([TIMELINE, dropped(5)])
    assert lines(tmp_path) == [BEGIN, DROP]
    monkeypatch.setattr(os, "write", lambda file, data: 0)
    with pytest.raises(LedgerError, match=r"No space left on device: .*history\.jsonl"):
        ledger.commit([dropped(6)])


@pytest.mark.parametrize("change", ["a number", "a line less", "a line more", "two lines in another order"])
def test_no_line_can_be_changed(tmp_path: Path, change: str) -> None:
    written(tmp_path, [TIMELINE], [dropped(5)], [dropped(6)], [dropped(7)])
    path = tmp_path / "history.jsonl"
    begin, five, six, seven = path.read_text().splitlines(keepends=True)
    changed = {
        "a number": [begin, five.replace('"uid":5', '"uid":8'), six, seven],
        "a line less": [begin, six, seven],
        "a line more": [begin, five, five, six],
        "two lines in another order": [begin, six, five, seven],
    }
    path.write_text("".join(changed[change]))
    with pytest.raises(LedgerError, match=r"history\.jsonl, line [23]: it or the line before it is not the one that was written"):
        Ledger.open(tmp_path)


def test_the_history_of_another_run_is_refused(tmp_path: Path) -> None:
    for name, uid in (("a", 5), ("b", 6)):
        (tmp_path / name).mkdir()
        written(tmp_path / name, [TIMELINE, dropped(uid)])
    shutil.copy(tmp_path / "a" / "history.jsonl", tmp_path / "b" / "history.jsonl")
    with pytest.raises(LedgerError, match="is not the history of this ledger: line 2 is another one"):
        Ledger.open(tmp_path / "b")


def test_a_missing_last_line_is_told_to_who_only_reads(tmp_path: Path) -> None:
    written(tmp_path, [TIMELINE], [dropped(5)])
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(LedgerError, match="the ledger knows of 2 lines, 1 are there"):
        ledger_history.read_history(tmp_path, 2, 0)
    assert (tmp_path / FILE).exists()
