"""mypy --strict and pyright accept the pipelines, and report every marked line of `mistakes.py` and no other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MESSAGES = ROOT / "tests" / "messages"
MISTAKES = HERE / "mistakes.py"
ACCEPTED = [HERE / "accepted.py", *sorted((ROOT / "pipelines").glob("*.py"))]
PROGRAMS = sorted(MESSAGES.glob("*.py"))

Report = dict[str, set[int]]  # file name → lines with an error
TIMEOUT = 240


def _run(command: list[str]) -> str:
    environment = {**os.environ, "MYPYPATH": str(MESSAGES)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False).stdout


@cache
def mypy() -> Report:
    files = [str(f) for f in (MISTAKES, *ACCEPTED, *PROGRAMS)]
    report: Report = {}
    for line in _run([sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "--output", "json", *files]).splitlines():
        found = json.loads(line)
        if found["severity"] == "error":
            report.setdefault(Path(found["file"]).name, set()).add(found["line"])
    return report


@cache
def pyright() -> Report:
    files = [str(f) for f in (MISTAKES, *ACCEPTED)]
    found = json.loads(_run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *files]))
    assert found["summary"]["filesAnalyzed"] >= len(files)
    report: Report = {}
    for one in found["generalDiagnostics"]:
        if one["severity"] == "error":
            report.setdefault(Path(one["file"]).name, set()).add(one["range"]["start"]["line"] + 1)
    return report


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])


@CHECKERS
def test_every_marked_line_is_reported_and_no_other(checker: object) -> None:
    assert callable(checker)
    source = MISTAKES.read_text().splitlines()
    marked = {number: match[1] for number, line in enumerate(source, 1) if (match := re.search(r"# (E\d+)", line))}
    assert len(marked) == 38
    reported = checker()["mistakes.py"]
    assert {marked.get(line, f"line {line}") for line in reported} == set(marked.values())


@CHECKERS
def test_right_code_is_accepted(checker: object) -> None:
    assert callable(checker)
    report = checker()
    assert {file.name: report.get(file.name, set()) for file in ACCEPTED} == {file.name: set() for file in ACCEPTED}


def test_the_programs_of_the_messages_have_mistakes_that_only_rlflow_sees() -> None:
    assert {file.name: mypy().get(file.name, set()) for file in PROGRAMS} == {file.name: set() for file in PROGRAMS}
