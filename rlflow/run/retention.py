"""Which checkpoints lie in the folder of a run: the newest, the best, and no more than are asked for.

    checkpoints/step-000020/    what the workers hold at version 20
    checkpoints/scores.json     what evaluations gave, of versions that may be the best
    checkpoints/best            -> step-000020: the highest score; another one takes its place in one rename

    scored    before the event that tells it: the score of a version, of which there may be no checkpoint (yet)
    saved     after the transaction that tells it: the link is set anew, others are deleted
    rewound   a rollback or resume to a checkpoint: the scores of later weights are void, those weights are gone

A folder that is deleted loses its name first: nobody takes a half one for a checkpoint.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from ..errors import UsageError

__all__ = ["Retention", "best_of", "retained"]

STEP, GONE = re.compile(r"step-(\d{6,})"), ".gone-"


def best_of(scores: Mapping[int, float], versions: Collection[int]) -> int | None:
    """The version with the highest score of those that there is a checkpoint of; of equal ones the first."""
    candidates = [version for version in sorted(scores) if version in versions and not math.isnan(scores[version])]
    return max(candidates, key=lambda version: scores[version], default=None)


def retained(versions: Collection[int], *, newest: int, keep: int, others: Collection[int]) -> set[int]:
    """Of the checkpoints that are there, those that stay.

    newest: of those that are committed, what a resume begins at: it stays, and what is not committed yet. keep: so many of the newest ones,
    0 for all. others: the best one, and versions whose score is not known yet.
    """
    committed = sorted(version for version in versions if version <= newest)
    recent = committed[-keep:] if keep else committed
    return {version for version in versions if version > newest or version in recent or version in others} | ({newest} & set(versions))


class Retention:
    """Of one run. keep: newest checkpoints that stay, 0 for all. keep_best: versions that are evaluated are saved, the best one stays.

    Raises UsageError for a scores.json that is not one of ours.
    """

    def __init__(self, folder: Path, *, keep: int = 0, keep_best: bool = False) -> None:
        self.folder, self.keep, self.keep_best = folder, keep, keep_best
        self._file = folder / "scores.json"
        self._scores = _read(self._file)
        self._timeline, self._began = 0, 0

    def path(self, version: int) -> Path:
        return self.folder / f"step-{version:06d}"

    @property
    def versions(self) -> list[int]:
        """What there is a whole checkpoint of, in order."""
        return sorted(int(found[1]) for path in self.folder.iterdir() if (found := STEP.fullmatch(path.name)))

    @property
    def newest(self) -> Path | None:
        return self.path(self.versions[-1]) if self.versions else None

    @property
    def best(self) -> Path | None:
        """None where no version was both scored and saved, or nobody asked for it."""
        version = best_of(self._scores, self.versions) if self.keep_best else None
        return None if version is None else self.path(version)

    def scored(self, timeline: int, version: int, score: float) -> None:
        """What an evaluation of these weights gave. Of weights that a rollback has taken back it is void."""
        if not self.keep_best or (timeline < self._timeline and version > self._began):
            return
        self._scores[version] = score
        self._written()

    def rewound(self, timeline: int, version: int) -> None:
        """The run goes on from this version, on this timeline."""
        self._timeline, self._began = timeline, version
        if not self.keep_best:
            return
        self._scores = {scored: score for scored, score in self._scores.items() if scored <= version}
        self._written()

    def saved(self, newest: int, unscored: Collection[int]) -> list[Path]:
        """newest: the newest checkpoint that is committed. unscored: versions whose evaluation is under way or due.

        Returns what is no checkpoint any more, for the `Deleter`.
        """
        best = best_of(self._scores, self.versions)
        others = {*unscored, *([] if best is None else [best])} if self.keep_best else set[int]()
        stay = retained(self.versions, newest=newest, keep=self.keep, others=others)
        for version in set(self.versions) - stay:
            self._unname(self.path(version))
        if self.keep_best:
            self._scores = {version: score for version, score in self._scores.items() if version in stay | others or version > newest}
            self._written()
        return list(self.folder.glob(f"{GONE}*"))  # those too of a run that was killed while it deleted

    def _unname(self, path: Path) -> None:
        numbers = itertools.count()  # one of that version may still be on its way out: a rollback made it anew
        path.rename(next(gone for i in numbers if not (gone := self.folder / f"{GONE}{path.name}.{i}").exists()))

    def _written(self) -> None:
        _replace(self._file, msgspec.json.encode(self._scores))
        self._link()

    def _link(self) -> None:
        link, best = self.folder / "best", self.best
        if best is None:
            link.unlink(missing_ok=True)
        elif not link.is_symlink() or os.readlink(link) != best.name:
            new = self.folder / ".best.new"
            new.unlink(missing_ok=True)
            new.symlink_to(best.name)
            new.replace(link)


def _read(path: Path) -> dict[int, float]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[int, float])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not what a run writes: {error}. Delete it: the best one is then one of those to come") from error


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
