"""A resume that is refused has changed nothing, not even a ledger that an older rlflow wrote."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from small_loop import small

from rlflow.errors import LedgerError, UsageError
from rlflow.run.record import Options
from rlflow.run.screen import PlainScreen
from rlflow.run.session import resume

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run with n=2 whose ledger has tables of version 3, with rows as files of format 1."""
    shutil.copy(HERE / "ledger_v3.sqlite", tmp_path / "ledger.sqlite")
    shutil.copy(HERE / "ledger_v3.jsonl", tmp_path / "history.jsonl")
    (tmp_path / "rows" / "50").mkdir(parents=True)
    shutil.copy(HERE / "rows_v1.arrow", tmp_path / "rows" / "50" / "0.0.arrow")
    (tmp_path / "plan.json").write_bytes(small(n=2).to_json())
    for name in ("parameters.json", "ended.json"):
        (tmp_path / name).write_bytes(b"{}")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files; the log of a database that nobody has written to is empty."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "-" not in path.suffix}


@pytest.mark.parametrize(
    ("plan", "n", "error"),
    [
        (None, 3, "n=3: the groups of this run have n=2 trajectories each"),
        (b"", 2, "plan.json cannot be read"),
        (b'{"schema": 0}', 2, "this plan is of schema 0"),
    ],
)
def test_a_resume_that_is_refused_leaves_an_older_run_as_it_was(folder: Path, plan: bytes | None, n: int, error: str) -> None:
    if plan is not None:
        (folder / "plan.json").write_bytes(plan)
    before = contents(folder)
    with pytest.raises(UsageError, match=error):
        resume(small(n=n), Options(steps=90), PlainScreen(sys.stdout, 90), folder)
    assert contents(folder) == before


def test_a_history_that_is_not_that_of_an_older_ledger_leaves_it_as_it_was(folder: Path) -> None:
    lines = (folder / "history.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "history.jsonl").write_bytes(b"".join(lines[1:]))
    before = contents(folder)
    with pytest.raises(LedgerError, match=r"history\.jsonl, line 1"):
        resume(small(n=2), Options(steps=90), PlainScreen(sys.stdout, 90), folder)
    assert {**contents(folder), "run.lock": b""} == {**before, "run.lock": b""}
