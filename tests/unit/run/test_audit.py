"""The audit: silent on what a run with kills leaves, and named faults on every table and every line that is forged, seals and all."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledger_world import LedgerWorld

from rlflow.cli import main
from rlflow.run import audit as audits
from rlflow.run.audit import Audit, audit
from rlflow.run.audit_rules import RULES
from rlflow.run.controller.ids import Span, TrajectoryId
from rlflow.run.controller.journal import (
    BatchRow,
    Counters,
    Finished,
    GroupRow,
    SavedRow,
    TimelineRow,
    TrajectoryRow,
)
from rlflow.run.controller.schedule import Config, Hop
from rlflow.run.ledger import FILE, Ledger
from rlflow.run.ledger import schema as ledger_schema

CONFIG = Config(
    n=2, groups_per_batch=2, max_lag=2, last=99, engines=("e", "f"), prompts=60, save_every=3, queue=1, oversample=1,
    hops=(Hop("filter", "group"),), max_drops=1000, max_save_attempts=1000,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_a_run_with_kills_passes_after_each_of_them_and_leaves_no_prompt_behind(tmp_path: Path, seed: int) -> None:
    world = LedgerWorld(tmp_path, seed)
    outcome = ""
    for life in range(100):
        config = replace(CONFIG, groups_per_batch=world.rng.choice((1, 2, 3)), max_lag=world.rng.choice((0, 1, 2)))
        outcome = world.live(config, 10**6 if life > 6 else world.rng.randrange(200))
        found = audit(tmp_path)
        assert found.faults == (), found.says()
        if outcome:
            break
    assert outcome == "done"
    assert (found.trained + found.dropped, found.live, found.pending) == (60, 0, ())


# --- forgeries --------------------------------------------------------------------------------------------------------------------
def span(version: int) -> tuple[Span, ...]:
    return (Span(version, 0, 4),)


def landed(uid: int, version: int) -> list[TrajectoryRow]:
    return [TrajectoryRow(uid, i, 0, version, "landed", "e", 1, span(version), 0) for i in range(2)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Batch 0 {0, 1} is covered, batch 1 {3, 4} trained, batch 2 {5} in training; 2 and 6 dropped, 7 runs."""
    ledger = Ledger.create(tmp_path)
    ledger.commit([TimelineRow(0, 0, 2, 2, 1, 9, policy="wait"), Counters(0, 0, 0, -1)])
    ledger.trained(0, 0, [(0, 2, 0), (1, 2, 0)])
    ledger.commit([*(GroupRow(uid, 0, "trained", 0, 0, 0, 1) for uid in (0, 1)), BatchRow(0, 0, "trained", (0, 1))])
    ledger.commit([GroupRow(2, 0, "dropped", -1, 0, 0, 1, "stale", "late")])
    ledger.commit([SavedRow(0, 1), BatchRow(0, 0, "covered", (0, 1)), Finished((0, 1, 2))])
    ledger.trained(0, 1, [(3, 2, 0), (4, 2, 1)])
    ledger.commit([GroupRow(3, 0, "trained", 1, 0, 0, 2), GroupRow(4, 1, "trained", 1, 0, 0, 2), *landed(3, 0), *landed(4, 1)])
    ledger.commit([BatchRow(0, 1, "trained", (3, 4))])
    ledger.commit([GroupRow(5, 1, "consumed", 2, 0, 0), *landed(5, 1), BatchRow(0, 2, "training", (5,))])
    ledger.commit([GroupRow(6, 2, "dropped", -1, 0, 0, 2, "attempts", "failed"), GroupRow(7, 2, "running", -1, 0, 0)])
    ledger.commit([TrajectoryRow(7, 0, 0, 2, "running", "e", 0, (), 0)])
    ledger.close()
    return tmp_path


def test_the_run_that_is_forged_below_passes(run: Path) -> None:
    assert audit(run).says() == (
        "4 prompts trained in 2 batches, 2 dropped, 2 live, 0 to be drawn again, on 1 timeline: nothing lost, doubled or skipped"
    )


def forge(folder: Path, statement: str) -> None:
    """Change the tables as if the ledger had written them so: with true seals."""
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    assert connection.execute(statement).rowcount > 0, "nothing was changed"
    ledger_schema._seal_all(connection)
    connection.close()


def forge_history(folder: Path, edit: Callable[[list[Any]], object]) -> None:
    """Change the lines as if they had been written so, and the ledger had noted it."""
    path = folder / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    chain, text = 0, ""
    for line in lines:
        line.pop("seal")
        body = json.dumps(line, separators=(",", ":"))
        chain = zlib.crc32(body.encode(), chain)
        text += f'{body[:-1]},"seal":{chain}}}\n'
    path.write_text(text)
    forge(folder, f"UPDATE history SET lines = {len(lines)}, chain = {chain}")


TABLES = [
    ("UPDATE finished SET stop = 2", "what was trained or dropped is so in the ledger", "prompt 2 was dropped (line 3)"),
    ("UPDATE finished SET start = 1", "what was trained or dropped is so in the ledger", "prompt 0 was trained in batch 0 (line 2)"),
    ("DELETE FROM finished", "what was trained or dropped is so in the ledger", "prompt 0"),
    ("UPDATE finished SET stop = 4", "a prompt is finished or has a row", "prompt 3 is finished in the ledger, and still trained"),
    ("INSERT INTO finished VALUES (20, 22, 0)", "a finished prompt was trained or dropped", "prompts 20 to 21 are finished"),
    ("INSERT INTO finished VALUES (1, 2, 0)", "intervals of finished prompts are apart", "from 1 to 2, after one to 3"),
    ("UPDATE totals SET groups = 3 WHERE state = 'trained'", "counts are those of the lines", "trained : 3 in the ledger, 2"),
    ("UPDATE totals SET reason = 'x' WHERE state = 'dropped'", "counts are those of the lines", "dropped stale: 0 in the ledger, 1"),
    ("DELETE FROM totals WHERE state = 'dropped'", "counts are those of the lines", "dropped stale: 0 in the ledger, 1"),
    ("DELETE FROM groups WHERE uid = 3", "what was trained or dropped is so in the ledger", "prompt 3 was trained in batch 1 (line 4)"),
    ("DELETE FROM groups WHERE uid = 5", "a consumed group is in its batch", "prompt 5, batch 2: of the batch only"),
    ("DELETE FROM groups WHERE uid = 6", "what was trained or dropped is so in the ledger", "prompt 6 was dropped"),
    ("DELETE FROM groups WHERE uid = 7", "a trajectory belongs to a group", "trajectory 7.0.0"),
    ("UPDATE groups SET state = 'running' WHERE uid = 4", "what was trained or dropped is so in the ledger", "says: running, batch 1"),
    ("UPDATE groups SET state = 'dropped', reason = 'x' WHERE uid = 5", "a row that is over has its line", "prompt 5 is dropped x"),
    ("UPDATE groups SET reason = '' WHERE uid = 6", "a drop has a reason", "prompt 6 (table groups)"),
    ("UPDATE trajectories SET state = 'dropped' WHERE uid = 5", "a drop has a reason", "trajectory 5.0 (table trajectories)"),
    ("UPDATE trajectories SET reason = 'x' WHERE uid = 5", "a drop has a reason", "trajectory 5.1 (table trajectories)"),
    ("UPDATE trajectories SET state = 'dropped', reason = 'f' WHERE uid = 4 AND traj_uid = 1",
     "what was taken out of a group is so in the ledger", "prompt 4 (line 4): 0 trajectories were taken out, in the ledger 1"),
    ("UPDATE timelines SET least_left = 1", "timelines are those of the history", "timeline 0"),
    ("UPDATE groups SET batch = 3 WHERE uid = 4", "a consumed group is in its batch", "prompt 4, batch 3: of the group only"),
    ("UPDATE groups SET version = 3 WHERE uid = 6", "what was trained or dropped is so in the ledger", "version 3 attempts"),
    ("UPDATE groups SET tag = 3 WHERE uid = 7", "no group is of a version that was never made", "prompt 7 has tag 3, published is 2"),
    ("UPDATE groups SET tag = 2 WHERE uid = 4", "a group is as old as its oldest trajectory", "trajectory 4.0.0 has tag 1"),
    ("UPDATE groups SET state = 'ready' WHERE uid = 7", "a landed group has all its trajectories", "prompt 7 is ready with 0 of 2 landed"),
    ("DELETE FROM trajectories WHERE uid = 5 AND traj_uid = 1", "a landed group has all its trajectories", "prompt 5 is consumed with"),
    ("UPDATE trajectories SET traj_uid = 2 WHERE uid = 7", "a trajectory belongs to a group", "trajectory 7.2.0"),
    ("UPDATE trajectories SET spans = '[[0,0,4]]' WHERE uid = 5", "tokens are sampled from the tag on", "has tag 1 and tokens"),
    ("UPDATE trajectories SET spans = '[[0,0,4]]' WHERE uid = 5", "no trained token is older than max_lag", "trajectory 5.0 has tokens of"),
    ("DELETE FROM batches WHERE batch = 1", "a consumed group is in its batch", "prompt 3, batch 1: of the group only"),
    ("UPDATE batches SET groups = '[3]' WHERE batch = 1", "a trained batch has the groups that were trained", "prompt 4 is only"),
    ("UPDATE batches SET groups = '[3,4,7]' WHERE batch = 1", "a trained batch has the groups that were trained", "prompt 7 is only"),
    ("UPDATE timelines SET max_lag = 2", "timelines are those of the history", "timeline 0"),
    ("DELETE FROM timelines", "timelines are those of the history", "timeline 0 is in the history only"),
    ("UPDATE saved SET version = 3", "a checkpoint is of a version that was made", "version 3 of timeline 0, published is 2"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "rule", "place"), TABLES, ids=[statement for statement, _, _ in TABLES])
def test_a_forged_row_is_found_by_what_it_says(run: Path, statement: str, rule: str, place: str) -> None:
    forge(run, statement)
    assert any(fault.rule == rule and place in fault.place for fault in audit(run).faults), audit(run).says()


@pytest.mark.parametrize("table", ["groups", "trajectories", "batches", "timelines", "saved", "counters", "finished", "totals", "history"])
def test_every_row_of_every_table_is_sealed(run: Path, table: str) -> None:
    path = run / FILE
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] not in ("seal", "newest")]
    for column in columns:
        path.write_bytes(whole)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            changed = f"CASE typeof({column}) WHEN 'integer' THEN {column} + 1000 ELSE {column} || 'x' END"
            connection.execute(f"UPDATE {table} SET {column} = {changed} WHERE {column} = (SELECT max({column}) FROM {table})")
        (fault,) = audit(run).faults
        assert f"a row of table {table} is not the one that was written" in fault.place, column


def swap(lines: list[Any]) -> None:
    lines[1], lines[3] = lines[3], lines[1]


HISTORY: list[tuple[str, Callable[[list[Any]], object], str, str]] = [
    ("a drop less", lambda lines: lines.pop(2), "a finished prompt was trained or dropped", "prompts 2 to 2 are finished"),
    ("a batch less", lambda lines: lines.pop(1), "batches of the surviving timeline follow", "batch 1 (line 3) comes after no batch"),
    ("a batch twice", lambda lines: lines.append(dict(lines[3])), "a batch is trained once", "batch 1 is told by lines 4,6"),
    ("a drop twice", lambda lines: lines.append(dict(lines[2])), "a prompt is trained or dropped once", "prompt 2 was dropped"),
    ("a gap", lambda lines: lines[3].update(batch=5), "batches of the surviving timeline follow", "batch 5 (line 4) comes after batch 0"),
    ("another prompt", lambda lines: lines[3]["groups"][0].__setitem__(0, 9), "a row that is over has its line", "prompt 3 is trained"),
    ("a prompt of another batch", lambda lines: lines[3]["groups"].append([0, 2, 1]), "a prompt is trained or dropped once", "prompt 0"),
    ("a trajectory less", lambda lines: lines[1]["groups"][0].__setitem__(1, 1), "no group is trained short", "prompt 0 (line 2)"),
    ("one taken out", lambda lines: lines[1]["groups"].__setitem__(0, [0, 1, 0, 1]), "no group is trained short", "1 and leave all"),
    ("an old token", lambda lines: lines[0].update(max_lag=0), "no trained token is older than max_lag", "prompt 3 (line 4) has tokens of"),
    ("no reason", lambda lines: lines[2].update(reason=""), "a drop has a reason", "prompt 2 (line 3)"),
    ("another reason", lambda lines: lines[2].update(reason="x"), "counts are those of the lines", "dropped stale: 1 in the ledger, 0"),
    ("another order", swap, "batches of the surviving timeline follow", ""),
    ("a timeline more", lambda lines: lines.append(lines[0] | {"timeline": 1}), "timelines are those of the history", "timeline 1"),
    ("a dead timeline", lambda lines: lines.append(lines[0] | {"timeline": 1}), "a row that is over has its line", "prompt 3 is trained"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "rule", "place"), [case[1:] for case in HISTORY], ids=[case[0] for case in HISTORY])
def test_a_forged_line_is_found_by_what_it_says(run: Path, edit: Callable[[list[Any]], object], rule: str, place: str) -> None:
    forge_history(run, edit)
    if edit is swap:  # the order of lines means nothing but their chain
        assert audit(run).faults == ()
        return
    assert any(fault.rule.startswith(rule) and place in fault.place for fault in audit(run).faults), audit(run).says()


@pytest.mark.parametrize("edit", ["changed", "less", "last less"])
def test_a_line_that_is_not_the_one_that_was_written_is_found_by_its_seal(run: Path, edit: str) -> None:
    path = run / "history.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    edited = {
        "changed": [lines[0], lines[1].replace("[0,2,0]", "[9,2,0]"), *lines[2:]],
        "less": lines[:2] + lines[3:],
        "last less": lines[:-1],
    }
    path.write_text("".join(edited[edit]))
    (fault,) = audit(run).faults
    assert (fault.rule, "history.jsonl" in fault.place) == ("the files can be read", True)


def test_every_rule_finds_something(run: Path) -> None:
    tried = {rule for _, rule, _ in TABLES} | {rule for _, _, rule, _ in HISTORY}
    assert [rule for rule in RULES if not any(rule.startswith(one) for one in tried)] == []


def remainder(folder: Path, least_left: int) -> Path:
    """Batch 0 trains two of the three trajectories of prompt 0, batch 1 has two of prompt 1; filters leave so many at least."""
    ledger = Ledger.create(folder)
    ledger.commit([TimelineRow(0, 0, 3, 1, 1, 9, ("keep",), "wait", least_left), Counters(0, 0, 0, -1)])
    ledger.trained(0, 0, [(0, 2, 0, 1)])
    rows = [TrajectoryRow(uid, i, 0, 0, "landed", "e", 1, span(0), 0) for uid in (0, 1) for i in (0, 2)]
    rows += [TrajectoryRow(uid, 1, 0, 0, "dropped", "e", 1, span(0), 0, 0, 0, "keep") for uid in (0, 1)]
    ledger.commit([GroupRow(0, 0, "trained", 0, 0, 1, 1), BatchRow(0, 0, "trained", (0,)), GroupRow(1, 0, "consumed", 1, 0, 1), *rows])
    ledger.commit([BatchRow(0, 1, "training", (1,))])
    ledger.close()
    return folder


def test_a_group_is_trained_with_what_its_filters_leave(tmp_path: Path) -> None:
    found = audit(remainder(tmp_path, 2))
    assert found.faults == ()
    assert found.says().startswith("1 prompt trained in 1 batch (less 1 trajectory that filters took out), 0 dropped, 1 live")


def test_a_group_of_which_less_is_left_than_declared_is_told(tmp_path: Path) -> None:
    assert [fault.place for fault in audit(remainder(tmp_path, 3)).faults] == [
        "prompt 0 (line 2) was trained with 2 of 3 trajectories, filters took out 1 and leave at least 3",
        "prompt 0 is trained with 2 trajectories, filters leave 3",
        "prompt 1 is consumed with 2 trajectories, filters leave 3",
    ]


def test_a_drop_by_a_version_that_was_gone_back_behind_does_not_count(run: Path) -> None:
    """Timeline 1 begins at version 1: batch 1 and the drop of prompt 6 at version 2 are undone, batch 0 and the drop of 2 stay."""
    ledger = Ledger.open(run)
    ledger.commit([TimelineRow(1, 1, 2, 2, 1, 9, policy="wait")])
    ledger.close()
    found = {fault.place.split(" (")[0].split(" in the ledger")[0] for fault in audit(run).faults}
    assert {"prompt 3 is trained ", "prompt 4 is trained ", "prompt 6 is dropped attempts"} <= found
    assert not any("prompt 2 " in place or "prompt 0 " in place for place in found)


def test_prompts_that_are_to_be_drawn_again_are_told(run: Path) -> None:
    ledger = Ledger.open(run)
    ledger.commit([GroupRow(11, 2, "running", -1, 0, 0)])
    ledger.close()
    assert (audit(run).faults, audit(run).pending) == ((), ((8, 11),))


def test_rows_that_are_not_there_are_told(run: Path) -> None:
    (run / "rows").mkdir()
    assert audit(run).faults[0].place.endswith("rows/3/0.0 is missing")
    assert audit(run, rows=False).faults == ()


def test_rows_that_a_run_deleted_while_it_was_audited_are_not_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "rows").mkdir()
    look = audits._missing_rows

    def after_a_commit(connection: sqlite3.Connection, rows: Path) -> dict[TrajectoryId, Path]:
        with closing(Ledger.open(run)) as ledger:
            for one in audits._landed(connection):
                ledger.commit([TrajectoryRow(one.uid, one.traj_uid, one.attempt + 1, -1, "queued", "", 0, (), 0)])
        return look(connection, rows)

    monkeypatch.setattr(audits, "_missing_rows", after_a_commit)
    assert audit(run).faults == ()


def test_the_command_says_what_is_not_so_and_exits_with_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(run)]) == 0
    assert capsys.readouterr().out.endswith("nothing lost, doubled or skipped\n")
    forge(run, "DELETE FROM groups WHERE uid = 7")
    assert main(["audit", str(run)]) == 1
    assert capsys.readouterr().out == "a trajectory belongs to a group: not so: trajectory 7.0.0\n"


def test_a_run_is_named_by_its_name_in_the_root(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", run.name, "--root", str(run.parent)]) == 0
    assert "nothing lost, doubled or skipped" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "not-there"])
def test_a_folder_that_is_no_run_is_a_wrong_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["audit", str(tmp_path / name)]) == 2
    assert "is not the folder of a run: it has neither parameters.json nor ledger.sqlite" in capsys.readouterr().err


def test_one_of_a_thing_is_one() -> None:
    assert Audit(faults=(), timelines=1, batches=1, trained=1).says() == (
        "1 prompt trained in 1 batch, 0 dropped, 0 live, 0 to be drawn again, on 1 timeline: nothing lost, doubled or skipped"
    )
