"""Old checkpoints are deleted beside the run, and neither a slow disk nor many of them hold it up."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rlflow.run.deleting import Deleter

HANGS = """
import asyncio, shutil, threading
from pathlib import Path
from rlflow.run.deleting import Deleter

shutil.rmtree = lambda *_, **__: threading.Event().wait()

async def run():
    deleter = Deleter()
    deleter.delete([Path("one")])
    print(await asyncio.to_thread(deleter.wait, 0.1))

asyncio.run(run())
"""


def test_folders_are_deleted_with_what_is_in_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "actor").mkdir(parents=True)
        (tmp_path / name / "actor" / "weights").write_text(name)
    deleter = Deleter()
    deleter.delete([tmp_path / "one"])
    deleter.delete([tmp_path / "two"])
    assert deleter.wait(10)
    assert list(tmp_path.iterdir()) == []


def test_one_thread_deletes_however_often_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, deleted = threading.Event(), threading.Event(), list[tuple[str, str]]()

    def slow(folder: Path, **_: Any) -> None:
        deleted.append((folder.name, threading.current_thread().name))
        began.set()
        assert go.wait(10)

    monkeypatch.setattr(shutil, "rmtree", slow)
    deleter = Deleter()
    deleter.delete([Path("one")])
    assert began.wait(10)
    for _ in range(3):
        deleter.delete([Path("one"), Path("two")])
    assert not deleter.wait(0.05)
    assert [thread.name for thread in threading.enumerate()].count("deleting") == 1
    go.set()
    assert deleter.wait(10)
    assert deleted == [(name, "deleting") for name in ("one", "one", "two")]  # made anew meanwhile, for all it knows


def test_what_was_made_anew_under_a_name_is_deleted_again(tmp_path: Path) -> None:
    deleter = Deleter()
    for _ in range(2):
        (tmp_path / "one").mkdir()
        deleter.delete([tmp_path / "one"])
        assert deleter.wait(10)
    assert not (tmp_path / "one").exists()


def test_a_disk_that_hangs_holds_up_no_process_at_its_end() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
