"""Which checkpoints stay, and which one is the best."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlflow.errors import UsageError
from rlflow.run.deleting import Deleter
from rlflow.run.retention import Retention, best_of, retained


@pytest.mark.parametrize(
    ("keep", "others", "stay"),
    [
        (0, set(), {10, 20, 30, 40}),  # all
        (2, set(), {20, 30, 40}),  # 40 is not committed yet, it is none of the two
        (1, set(), {30, 40}),
        (1, {10}, {10, 30, 40}),  # the best one
        (1, {10, 20}, {10, 20, 30, 40}),
        (9, set(), {10, 20, 30, 40}),
    ],
)
def test_the_newest_stay_and_what_else_is_needed(keep: int, others: set[int], stay: set[int]) -> None:
    assert retained([10, 20, 30, 40], newest=30, keep=keep, others=others) == stay


def test_the_best_is_the_first_of_the_highest_that_there_is_a_checkpoint_of() -> None:
    assert best_of({0: 0.9, 10: 0.5, 20: 0.7, 30: 0.7}, [10, 20, 30]) == 20
    assert best_of({10: float("nan"), 20: -1.0}, [10, 20]) == 20
    assert best_of({0: 0.9}, [10]) is None


def saved(checkpoints: Retention, version: int, unscored: tuple[int, ...] = ()) -> None:
    checkpoints.path(version).mkdir()
    (checkpoints.path(version) / "weights").write_text(str(version))
    delete(checkpoints.saved(version, unscored))


def delete(folders: list[Path]) -> None:
    deleter = Deleter()
    deleter.delete(folders)
    assert deleter.wait(10)


def there(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith((".", "step-")))


def test_the_link_follows_the_best_score(tmp_path: Path) -> None:
    checkpoints = Retention(tmp_path, keep=1, keep_best=True)
    for version, score in ((10, 0.5), (20, 0.8), (30, 0.6)):
        saved(checkpoints, version, unscored=(version,))
        checkpoints.scored(0, version, score)
    assert os.readlink(tmp_path / "best") == "step-000020"
    assert (tmp_path / "best" / "weights").read_text() == "20"
    saved(checkpoints, 40)
    assert there(tmp_path) == ["step-000020", "step-000040"]


def test_a_checkpoint_whose_score_is_to_come_stays_till_it_is_there(tmp_path: Path) -> None:
    checkpoints = Retention(tmp_path, keep=1, keep_best=True)
    saved(checkpoints, 10, unscored=(10,))
    saved(checkpoints, 20, unscored=(10, 20))
    assert there(tmp_path) == ["step-000010", "step-000020"]
    checkpoints.scored(0, 10, 0.1)
    checkpoints.scored(0, 20, 0.2)
    saved(checkpoints, 30)
    assert there(tmp_path) == ["step-000020", "step-000030"]


def test_scores_outlive_the_process(tmp_path: Path) -> None:
    first = Retention(tmp_path, keep=1, keep_best=True)
    first.scored(0, 10, 0.9)
    saved(first, 10)
    second = Retention(tmp_path, keep=1, keep_best=True)
    second.rewound(1, 10)
    saved(second, 20)
    second.scored(1, 20, 0.3)
    assert second.best == tmp_path / "step-000010"
    assert os.readlink(tmp_path / "best") == "step-000010"


def test_scores_of_weights_that_a_rollback_took_back_are_void(tmp_path: Path) -> None:
    checkpoints = Retention(tmp_path, keep_best=True)
    saved(checkpoints, 10)
    saved(checkpoints, 20)
    checkpoints.scored(0, 10, 0.1)
    checkpoints.scored(0, 20, 0.9)
    checkpoints.rewound(1, 10)
    assert os.readlink(tmp_path / "best") == "step-000010"
    checkpoints.scored(0, 20, 0.9)  # it was under way
    assert os.readlink(tmp_path / "best") == "step-000010"
    checkpoints.scored(1, 20, 0.2)
    assert os.readlink(tmp_path / "best") == "step-000020"


def test_without_a_best_one_there_is_no_link(tmp_path: Path) -> None:
    checkpoints = Retention(tmp_path, keep=1)
    checkpoints.scored(0, 10, 0.9)
    saved(checkpoints, 10)
    saved(checkpoints, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000020"]


def test_what_a_kill_left_half_deleted_goes_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / ".gone-step-000005" / "actor").mkdir(parents=True)
    (tmp_path / "step-000005-of-mine").mkdir()
    checkpoints = Retention(tmp_path)
    saved(checkpoints, 10)
    assert there(tmp_path) == ["step-000005-of-mine", "step-000010"]


def test_one_that_is_no_checkpoint_any_more_has_no_name_before_it_is_deleted(tmp_path: Path) -> None:
    checkpoints = Retention(tmp_path, keep=1)
    saved(checkpoints, 10)
    for attempt in range(2):  # a rollback made version 10 anew, while the first was on its way out
        checkpoints.path(20 + attempt).mkdir()
        gone = checkpoints.saved(20 + attempt, ())
        assert [(path.parent, (path / "weights").exists()) for path in gone if "10" in path.name] == [(tmp_path, True)] * (attempt + 1)
        assert checkpoints.versions == [20 + attempt]
        if attempt == 0:
            checkpoints.path(10).mkdir()
            (checkpoints.path(10) / "weights").write_text("again")
    delete(gone)
    assert there(tmp_path) == ["step-000021"]


def test_scores_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_bytes(b"")
    with pytest.raises(UsageError, match=r"scores\.json is not what a run writes: .* Delete it"):
        Retention(tmp_path, keep_best=True)
