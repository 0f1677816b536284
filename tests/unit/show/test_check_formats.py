"""What a check says to machines: places in characters, one object, workflow commands that GitHub can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from wrong_programs import HEAD, SPREAD, WIDE, written

from rlflow.cli import main
from rlflow.language.diagnostic import Diagnostic, Label
from rlflow.language.source import Place
from rlflow.show.report import github

GRPO = str(Path(__file__).parents[3] / "pipelines" / "grpo.py")


def test_columns_are_characters_from_1_and_the_end_is_exclusive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, "wide_h", WIDE)
    assert main(["check", file, "--format", "json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said.pop("timings_ms").keys() >= {"trace", "freeze", "infer"}
    assert said == {
        "ok": False,
        "pipeline": "wrong",
        "errors": [
            {
                "code": "RLF015",
                "message": "`n` of `dispatch` is an integer of at least 1, got 0",
                "file": file,
                "line": 8,
                "column": 63,
                "end_line": 8,
                "end_column": 64,
                "label": "this is 0",
                "notes": [],
                "help": "give at least 1",
                "related": [],
            }
        ],
        "warnings": [],
        "suppressed": [],
    }
    assert WIDE.splitlines()[7][62:63] == "n"


def test_a_span_over_lines_ends_on_its_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(tmp_path, "spread_h", SPREAD), "--format", "json"]) == 3
    first, second = json.loads(capsys.readouterr().out)["errors"]
    assert [first[key] for key in ("code", "line", "column", "end_line", "end_column")] == ["RLF004", 8, 5, 10, 6]
    assert [second[key] for key in ("code", "line")] == ["RLF015", 11]


def test_an_accepted_pipeline_is_one_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--prompts", "16", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["pipeline"], said["errors"], said["warnings"], said["suppressed"]) == (True, "grpo", [], [], [])


def test_what_a_file_prints_is_not_in_the_object(tmp_path: Path) -> None:
    file = written(tmp_path, "noisy_h", "print('imported')\n" + HEAD + "    print('traced')\n")
    done = subprocess.run(
        [sys.executable, "-m", "rlflow.cli", "check", file, "--format", "json"], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout)["ok"] is True
    assert done.stderr == "imported\ntraced\n"


def test_a_declaration_that_is_refused_at_import_is_an_object_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'from rlflow import operator\n\n\n@operator(per="row", rows="padded")\ndef odd() -> None: ...\n' + HEAD + "    odd()\n"
    assert main(["check", written(tmp_path, "declared_h", text), "--n", "3", "--format", "json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["pipeline"], [e["code"] for e in said["errors"]], said["timings_ms"]) == ("declared_h", ["RLF013"], {})


def test_a_wrong_command_line_is_no_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--format", "jsn"]) == 2
    assert capsys.readouterr().out == ""


def test_github_commands_name_files_from_the_current_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", written(tmp_path, "annotated_h", SPREAD), "--format", "github"]) == 3
    assert capsys.readouterr().out == (
        "::error file=annotated_h.py,line=8,endLine=10,title=RLF004::missing a required argument: 'n' in the call of `dispatch`"
        "%0Ahelp: `dispatch(prompts, n)`\n"
        "::error file=annotated_h.py,line=11,col=56,endLine=11,endColumn=57,title=RLF015::"
        "`n` of `dispatch` is an integer of at least 1, got 0%0Ahelp: give at least 1\n"
    )


def test_github_escapes_what_would_end_a_property_or_the_message() -> None:
    found = Diagnostic(code="RLF210", message="50% of\r\na: b, c", where=Place("/a,b:c%/x.py", 1, 0, 1, 4), severity="warning")
    assert github([found], "/elsewhere") == (
        "::warning file=/a%2Cb%3Ac%25/x.py,line=1,col=1,endLine=1,endColumn=5,title=RLF210::50%25 of%0D%0Aa: b, c"
    )


def test_github_is_told_the_line_that_calls_an_installed_helper() -> None:
    helper, line = Place("/site-packages/helper.py", 7, 4, 7, 9), Place("/repo/loop.py", 3, 4, 3, 12)
    found = Diagnostic(code="RLF210", message="m", where=helper, related=(Label(line, "called from here"),))
    assert github([found], "/repo") == "::error file=loop.py,line=3,col=5,endLine=3,endColumn=13,title=RLF210::m"
    assert github([found], "/elsewhere").startswith("::error file=/site-packages/helper.py,line=7,")


def test_the_text_form_counts_in_its_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(tmp_path, "counted_h", SPREAD)]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "2 errors"


def test_warnings_and_what_is_suppressed_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = '    dataset("x.parquet", tokenizer="tiny"){}\n'
    file = written(tmp_path, "warned_h", HEAD + made.format("  # rlflow: ignore[RLF210]") + made.format(""))
    assert main(["check", file]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("wrong: 2 operators, 0 feedbacks, no error, 1 warning, 1 suppressed (")
    assert main(["check", file, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], [d["line"] for d in said["warnings"]], [d["line"] for d in said["suppressed"]]) == (True, [9], [8])
