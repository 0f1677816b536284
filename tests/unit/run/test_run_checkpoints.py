"""The checkpoint of a run: whole under its name, or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlflow.errors import UsageError
from rlflow.run import checkpoints


def build(root: Path, content: str) -> Path:
    building = root / ".step-000010.unfinished"
    checkpoints.clear(building)
    (building / "actor").mkdir()
    (building / "actor" / "weights").write_text(content)
    return building


def test_one_of_a_timeline_that_was_left_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "step-000010"
    for timeline, content in ((0, "lost"), (1, "kept")):
        checkpoints.finish(build(tmp_path, content), folder, timeline, 10, ["actor"])
    assert (folder / "actor" / "weights").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010"]
    assert checkpoints.check(folder, 10, ["actor"]) == folder


def test_what_an_attempt_that_failed_left_behind_is_not_in_the_next(tmp_path: Path) -> None:
    build(tmp_path, "half")
    building = tmp_path / ".step-000010.unfinished"
    checkpoints.clear(building)
    assert list(building.iterdir()) == []


def test_a_folder_that_was_not_finished_is_not_gone_on_from(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no whole checkpoint: there is no "):
        checkpoints.check(build(tmp_path, "half"), 10, ["actor"])


def test_a_checkpoint_says_what_it_is_of(tmp_path: Path) -> None:
    folder = tmp_path / "step-000010"
    checkpoints.finish(build(tmp_path, ""), folder, 0, 10, ["actor"])
    with pytest.raises(UsageError, match="is of version 10 of actor; to go on takes version 10 of actor, critic"):
        checkpoints.check(folder, 10, ["actor", "critic"])
    with pytest.raises(UsageError, match="to go on takes version 9 of actor"):
        checkpoints.check(folder, 9, ["actor"])


def test_a_checkpoint_that_says_nothing_is_not_gone_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "step-000010"
    checkpoints.finish(build(tmp_path, "kept"), folder, 0, 10, ["actor"])
    for content in (b"", b"{", b"\xff" * 40, b'{"timeline":0,"version":10,"workers":["\xff"]}'):
        (folder / checkpoints.SAYS).write_bytes(content)
        with pytest.raises(UsageError, match=r"checkpoint\.json is not what a run writes: "):
            checkpoints.check(folder, 10, ["actor"])
