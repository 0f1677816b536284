"""`rlflow runs`: what has become of each run, from its folder alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from rlflow.cli import main
from rlflow.run.controller.journal import BatchRow, Change, Counters, SavedRow, TimelineRow
from rlflow.run.ledger import Ledger
from rlflow.run.record import Ended, Options, Record, Told
from rlflow.run.runs import Summary, as_table, runs_in, summary

NOW = 1_000_000.0
BEGUN: tuple[Change, ...] = (TimelineRow(0, 0, 2, 4, 0, 19), Counters(0, 0, 0, -1))
TRAINED = BatchRow(0, 4, "trained", ())


def a_run(folder: Path, changes: Iterable[Change] = (), ended: Ended | None = None, lines: Iterable[str] = ()) -> Ledger | None:
    """The folder of a run of 20 steps; the ledger is held by this process until it is closed."""
    folder.mkdir(parents=True)
    record = Record(pipeline={}, run=Options(steps=20), told=Told(cwd="/", file="/grpo.py", pipeline="grpo"))
    (folder / "parameters.json").write_bytes(msgspec.json.encode(record, enc_hook=str))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    os.utime(folder / "metrics.jsonl", (NOW - 90, NOW - 90))
    os.utime(folder / "parameters.json", (NOW - 5000, NOW - 5000))
    if ended is not None:
        (folder / "ended.json").write_bytes(msgspec.json.encode(ended))
    if not (made := tuple(changes)):
        return None
    ledger = Ledger.create(folder)
    ledger.commit(made)
    return ledger


def closed(ledger: Ledger | None) -> None:
    assert ledger is not None
    ledger.close()


def test_a_run_that_a_process_holds_is_running(tmp_path: Path) -> None:
    ledger = a_run(tmp_path / "one", [*BEGUN, TRAINED])
    found = summary(tmp_path / "one", NOW)
    closed(ledger)
    assert (found.state, found.pid, found.version, found.checkpoint, found.steps) == ("running", os.getpid(), 5, 0, 20)
    assert found.idle == 90


def test_a_run_that_nobody_holds_and_that_did_not_say_its_end_was_killed(tmp_path: Path) -> None:
    closed(a_run(tmp_path / "one", [*BEGUN, SavedRow(0, 3), TRAINED]))
    found = summary(tmp_path / "one", NOW)
    assert (found.state, found.pid, found.version, found.checkpoint) == ("killed", None, 5, 3)


def test_batches_of_an_older_timeline_do_not_count(tmp_path: Path) -> None:
    closed(a_run(tmp_path / "one", [*BEGUN, SavedRow(0, 3), TRAINED, TimelineRow(1, 3, 2, 4, 0, 19), BatchRow(1, 3, "trained", ())]))
    assert summary(tmp_path / "one", NOW).version == 4


@pytest.mark.parametrize("how", ["done", "stopped", "failed"])
def test_a_run_says_how_it_ended(tmp_path: Path, how: str) -> None:
    closed(a_run(tmp_path / "one", BEGUN, msgspec.convert({"ended": how, "why": "this"}, Ended)))
    assert (summary(tmp_path / "one", NOW).state, summary(tmp_path / "one", NOW).why) == (how, "this")


def test_the_last_reward_is_of_the_last_whole_line_about_one(tmp_path: Path) -> None:
    evaluations = ['{"kind":"held_out","reward":0.25}', '{"kind":"held_out","reward":0.5}']
    a_run(tmp_path / "one", lines=[*evaluations, '{"kind":"step","reward":0.1}', '{"kind":"held_out","rew'])
    assert summary(tmp_path / "one", NOW).reward == 0.5


def test_a_run_without_a_ledger_was_killed_before_it_began(tmp_path: Path) -> None:
    a_run(tmp_path / "one")
    found = summary(tmp_path / "one", NOW)
    assert (found.state, found.version, found.checkpoint) == ("killed", None, None)
    assert "ledger.sqlite is missing" in found.why


def test_a_folder_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    closed(a_run(tmp_path / "one", BEGUN))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "parameters.json").write_text("{}")
    (tmp_path / "no run").mkdir()
    closed(a_run(tmp_path / "three", BEGUN))
    (tmp_path / "three" / "ended.json").write_bytes(b'{"ended":"done","why":"\xff"}')
    found = {run.name: run for run in runs_in(tmp_path, NOW)}
    assert {name: run.state for name, run in found.items()} == {"one": "killed", "two": "unreadable", "three": "unreadable"}
    assert "ended.json is not what a run writes" in found["three"].why


def test_a_run_is_looked_at_without_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(a_run(tmp_path / "one", BEGUN))
    opened, flags = os.open, list[int]()
    monkeypatch.setattr(os, "open", lambda path, mode, *rest, **more: (flags.append(mode), opened(path, mode, *rest, **more))[1])
    assert summary(tmp_path / "one", NOW).state == "killed"
    assert flags
    assert {mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for mode in flags} == {0}


def test_a_run_that_may_not_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(a_run(tmp_path / "one", BEGUN))

    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "run.lock"))

    monkeypatch.setattr("rlflow.run.runs.holder", denied)
    assert [(run.state, "Permission denied" in run.why) for run in runs_in(tmp_path, NOW)] == [("unreadable", True)]


def test_the_table() -> None:
    run = Summary(
        name="one", folder="/runs/one", pipeline="grpo", state="failed", why="`actor` died: killed by SIGKILL\nmore", pid=None,
        steps=20, version=12, checkpoint=10, reward=0.9321, idle=150.0,
    )  # fmt: skip
    other = Summary(
        name="another", folder="/runs/another", pipeline="ppo", state="running", why="", pid=123, steps=100, version=0, checkpoint=0,
        reward=None, idle=3.2,
    )  # fmt: skip
    assert as_table([run, other]).splitlines() == [
        "run      pipeline  state                                    version  resumes at  held-out  last sign of life",
        "one      grpo      failed: `actor` died: killed by SIGKILL  12/20    10          0.932     2 min ago",
        "another  ppo       running (123)                            0/100    -           -         3 s ago",
    ]


def test_the_command_prints_objects_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed(a_run(tmp_path / "one", [*BEGUN, SavedRow(0, 3)]))
    assert main(["runs", "--root", str(tmp_path), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["state"], found["checkpoint"]) == ("one", "killed", 3)
    assert main(["runs", "--root", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"no run in {tmp_path / 'none'}\n"
