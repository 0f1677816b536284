"""Rows that outlive their process: the block of a trajectory or of a group as one Arrow file.

    rows/UID/TRAJ_UID.ATTEMPT.arrow      what one trajectory left
    rows/UID/OPERATOR.TIMELINE.arrow     what an operator of the whole group made

    write under another name ──rename──▶ there, whole or not at all ──event──▶ decide

A file is complete before the event that names it is decided, so the ledger names no half file. A checksum over all columns and facts is
in the schema's metadata: a file that was cut or changed is told, never trained. ``recycle`` and ``sweep`` delete.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..disk import sync
from ..errors import DataError
from .controller.ids import TrajectoryId

if TYPE_CHECKING:
    from ..data.batch import Block

FORMAT = 1
KEY = b"rlflow.rows"
ENDING = ".arrow"


class Facts(msgspec.Struct, frozen=True):
    """What is known of the rows beside their columns.

    plan: an id of the plan that wrote them, for a reader with another one. node: the node that wrote them.
    lengths: tokens of each leaf row. spans: (version, start, end) of what sampled them. metrics: what was measured on them.
    """

    node: int = -1
    plan: str = ""
    timeline: int = 0
    lengths: tuple[int, ...] = ()
    spans: tuple[tuple[int, int, int], ...] = ()
    metrics: dict[str, float] = {}


class _Head(msgspec.Struct, frozen=True):
    format: int
    checksum: int
    facts: Facts


def trajectory_file(rows: Path, trajectory: TrajectoryId) -> Path:
    """Where the rows of one trajectory lie. rows: the folder ``rows`` of the run."""
    return rows / str(trajectory.uid) / f"{trajectory.traj_uid}.{trajectory.attempt}{ENDING}"


def group_file(rows: Path, uid: int, operator: str, timeline: int) -> Path:
    """Where the rows lie that an operator made of a whole group."""
    return rows / str(uid) / f"{operator}.{timeline}{ENDING}"


def write(path: Path, block: Block, facts: Facts, *, durable: bool = False) -> None:
    """Write the rows; after it returns the file is there, whole. durable: on the disk too, not only in the system's cache.

    Raises OSError when there is no room.
    """
    from ..data.arrow import pa, to_arrow  # the controller reads no rows, so it does not wait for pyarrow

    head = msgspec.json.encode(_Head(FORMAT, _checksum(block, facts), facts))
    batch = to_arrow(block, {KEY: head})
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    with half.open("wb") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    half.replace(path)
    if durable:
        sync(path.parent)
        sync(path.parent.parent)


def read(path: Path) -> tuple[Block, Facts]:
    """The rows of a file and what is known of them. Raises DataError for one that is missing, cut, changed, or of another format."""
    from ..data.arrow import from_arrow

    batch = _record_batch(path)
    try:
        head = msgspec.json.decode((batch.schema.metadata or {}).get(KEY, b""), type=_Head)
    except msgspec.DecodeError as error:
        raise DataError(f"{path} holds no rows of a run: its schema does not say what they are ({error})") from None
    if head.format != FORMAT:
        raise DataError(f"{path} has format {head.format}, this rlflow reads format {FORMAT}: resume the run with the rlflow that wrote it")
    try:
        block = from_arrow(batch)
    except (DataError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if _checksum(block, head.facts) != head.checksum:
        raise DataError(f"{path} is damaged: its rows are not those that were written (checksum)")
    return block, head.facts


def recycle(rows: Path, uids: Iterable[int]) -> None:
    """Delete all files of these groups; of what is not there nothing is said."""
    for uid in uids:
        shutil.rmtree(rows / str(uid), ignore_errors=True)


def sweep(rows: Path, trajectories: Collection[TrajectoryId], group_files: Collection[Path] = ()) -> list[Path]:
    """Delete every file that is not of these: what a killed process left half, or what its ledger had no time to name. Returns them."""
    kept = {trajectory_file(rows, trajectory) for trajectory in trajectories} | set(group_files)
    extra = [file for file in rows.glob("*/*") if file not in kept]
    for file in extra:
        file.unlink(missing_ok=True)
    for folder in {file.parent for file in extra}:
        if not any(folder.iterdir()):
            folder.rmdir()
    return extra


def _record_batch(path: Path) -> Any:
    from ..data.arrow import pa

    try:
        reader = pa.ipc.open_file(pa.py_buffer(path.read_bytes()))
        if reader.num_record_batches != 1:
            raise DataError(f"{path} holds {reader.num_record_batches} record batches, rows of a run are in one")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the ledger says that these rows were written") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is no whole Arrow file: {error}") from error
    return batch


def _checksum(block: Block, facts: Facts) -> int:
    """CRC-32 over the facts and over names, kinds, offsets and values of all columns."""
    crc = zlib.crc32(msgspec.json.encode((facts, [(name, c.dtype, c.values.shape, c.axis) for name, c in block.columns.items()])))
    for column in block.columns.values():
        for array in (column.offsets, column.values):
            crc = zlib.crc32(b"none" if array is None else array.tobytes(), crc)
    return crc
