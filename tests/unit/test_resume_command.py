"""`rlflow resume`: what is refused before anything is started, and what is said about it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlflow.cli import main
from rlflow.commands import resume
from rlflow.compile.plan import Plan
from rlflow.flags import Command, command_of, options_of
from rlflow.run.controller.journal import Change, Counters, SavedRow, TimelineRow
from rlflow.run.ledger import Ledger
from rlflow.run.record import Ended, Options, Record

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo.py"
FLAGS = {"prompts": 4, "group_size": 2}


def killed(folder: Path, command: Command, given: dict[str, Any], plan: Plan, *changes: Change) -> None:
    """The folder of a run of 20 steps whose process was killed."""
    folder.mkdir()
    record = Record(pipeline={}, run=Options(steps=20), told=command.as_told(given, ()), modules=command.modules)
    (folder / "parameters.json").write_bytes(msgspec.json.encode(record, enc_hook=str))
    (folder / "plan.json").write_bytes(plan.to_json())
    ledger = Ledger.create(folder)
    ledger.commit([TimelineRow(0, 0, 2, 4, 0, 19), Counters(0, 0, 0, -1), *changes])
    ledger.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    command = command_of(str(GRPO))
    killed(tmp_path / "one", command, FLAGS, command.plan(FLAGS), SavedRow(0, 5))
    return tmp_path / "one"


def test_a_pipeline_that_has_changed_is_shown_and_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = command_of(str(GRPO))
    killed(tmp_path / "one", command, FLAGS, command.plan(FLAGS | {"kl": 0.5}))
    assert main(["resume", str(tmp_path / "one")]) == 3
    said = capsys.readouterr().err
    assert f"{tmp_path / 'one'} → " in said
    assert "parameters\n  ~ kl: 0.5 → 0.0\n" in said
    assert f"rlflow: this is not the pipeline that {tmp_path / 'one'} was started with\n" in said
    assert f"or go on with what it is now: rlflow resume {tmp_path / 'one'} --accept" in said


def test_the_size_of_a_group_is_refused_by_its_flag(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--group-size", "4"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"--group-size 4: the groups of {run} have 2 trajectories each" in said.err


def test_a_run_that_a_process_works_on_is_refused_with_its_id(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger.open(run)
    assert main(["resume", str(run)]) == 2
    ledger.close()
    assert f"run {run} is being worked on by process " in capsys.readouterr().err


def test_a_run_that_is_done_says_what_makes_it_go_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--steps", "5"]) == 0
    assert capsys.readouterr().out == (
        f"{run} would train nothing up to step 5: it is at version 5; to go on, give it more steps: rlflow resume {run} --steps 40\n"
    )
    assert main(["resume", str(run), "--steps", "0"]) == 2
    assert "--steps 0: give at least 1" in capsys.readouterr().err
    (run / "ended.json").write_bytes(msgspec.json.encode(Ended("done", "the source has ended")))
    assert main(["resume", str(run)]) == 0
    assert "is done at version 5" in capsys.readouterr().out


def test_a_run_whose_data_has_ended_says_that_epochs_make_it_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, run = command_of(str(GRPO)), tmp_path / "one"
    killed(run, command, FLAGS, command.plan(FLAGS), SavedRow(0, 5))
    record = Record(pipeline={}, run=Options(steps=20, epochs=1), told=command.as_told(FLAGS, ()), modules=command.modules)
    (run / "parameters.json").write_bytes(msgspec.json.encode(record, enc_hook=str))
    (run / "ended.json").write_bytes(msgspec.json.encode(Ended("done", "the source has ended")))
    assert main(["resume", str(run)]) == 0
    assert capsys.readouterr().out == f"{run} is done at version 5; to go on, give it more epochs: rlflow resume {run} --epochs 2\n"


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"ended":"done","why":"\xff"}'])
def test_an_end_that_no_run_wrote_is_said(run: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "ended.json").write_bytes(content)
    assert main(["resume", str(run)]) == 2
    assert f"{run / 'ended.json'} is not what a run writes: " in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_a_wrong_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(tmp_path)]) == 2
    assert f"{tmp_path} is not the folder of a run" in capsys.readouterr().err
    assert main(["resume"]) == 2
    assert "say first which run: rlflow resume RUN [flags]" in capsys.readouterr().err


def test_help_shows_the_flags_as_the_run_had_them(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--prompts INT [default: 4]" in shown
    assert "--lr FLOAT [default: 0.001]" in shown


def test_every_option_of_a_run_can_be_changed_but_what_the_run_is_made_of() -> None:
    options = {option.name for option in options_of(resume)}  # root: where the run is looked for
    assert {field.name for field in dataclasses.fields(Options)} - options == {"name", "seed"}


def test_a_pipeline_that_could_not_be_resumed_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "accepting_h.py").write_text("from rlflow import pipeline\n\n\n@pipeline\ndef loop(accept: bool = True) -> None: ...\n")
    assert main(["run", str(tmp_path / "accepting_h.py")]) == 2
    assert "the pipeline's parameter `accept` has the name of an option of rlflow: rename it" in capsys.readouterr().err
