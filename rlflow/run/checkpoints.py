"""The checkpoint of a run: what every trained worker wrote, under one name, whole or not there.

checkpoints/.step-000010.unfinished/   WORKER/ each written and synced by its worker ── checkpoint.json, fsync
checkpoints/step-000010/               ◀── rename, fsync        one of a timeline that was left is moved aside first, then deleted
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..disk import sync
from ..errors import UsageError

SAYS = "checkpoint.json"


class Said(msgspec.Struct, frozen=True):
    """What is in a checkpoint: written last."""

    timeline: int
    version: int
    workers: tuple[str, ...]


def clear(building: Path) -> None:
    """An empty folder to build in, whatever an earlier attempt left there."""
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)


def finish(building: Path, folder: Path, timeline: int, version: int, workers: Sequence[str]) -> None:
    """Give what was built its name. Raises OSError."""
    said = building / SAYS
    said.write_bytes(msgspec.json.format(msgspec.json.encode(Said(timeline, version, tuple(workers)))))
    sync(said)
    sync(building)
    aside = folder.with_name(f".{folder.name}.left")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    building.rename(folder)
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def check(folder: Path, version: int, workers: Sequence[str]) -> Path:
    """The folder, if it is a whole checkpoint of that version of all these workers. Raises UsageError."""
    path = folder / SAYS
    if not path.is_file():
        raise UsageError(f"{folder} is no whole checkpoint: there is no {path}")
    try:
        said = msgspec.json.decode(path.read_bytes(), type=Said)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not what a run writes: {error}") from error
    if said.version != version or not set(workers) <= set(said.workers):
        raise UsageError(
            f"{folder} is of version {said.version} of {', '.join(said.workers)}; to go on takes version {version} of {', '.join(workers)}"
        )
    return folder
