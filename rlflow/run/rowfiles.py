"""Rows that outlive their process: the block of a trajectory or of a group as one Arrow stream.

    rows/UID/WRITER.arrows       streams, one behind the other, all that one process wrote of a group:
        TRAJ_UID.ATTEMPT         what one trajectory left
        OPERATOR.TIMELINE        what an operator of the whole group made

    write: one append, whole or taken back ──event──▶ decide

A stream is complete before the event that names it is decided, so the ledger names no half one; a killed process may leave half a stream
at the end of its file, which nobody else ever appends to. (Not a file a trajectory: to make and delete hundreds a step can cost more
than all that is written into them.) A checksum over all columns and facts is in the schema's metadata of each stream: one that was cut or
changed is told, never trained. ``recycle`` and ``sweep`` delete.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..errors import DataError
from .controller.ids import TrajectoryId

if TYPE_CHECKING:
    from ..data.batch import Block

FORMAT = 2
KEY = b"rlflow.rows"
ENDING = ".arrows"
WRITER = f"{os.getpid()}-{time.time_ns()}"  # this process, and no other of the run, before a resume or after it
_appending = threading.Lock()


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
    name: str
    checksum: int
    facts: Facts
    written: int  # by the clock, in ns: of two streams of one name the later one counts


class _Stream(NamedTuple):
    """One stream of a file: its bytes, and what they hold; head None for what is none, which is the rest of the file then."""

    file: Path
    data: Any
    head: _Head | None
    batches: list[Any]
    why: str = ""


def trajectory_rows(rows: Path, trajectory: TrajectoryId) -> Path:
    """The name of the rows of one trajectory, as a path. rows: the folder ``rows`` of the run."""
    return rows / str(trajectory.uid) / f"{trajectory.traj_uid}.{trajectory.attempt}"


def group_rows(rows: Path, uid: int, operator: str, timeline: int) -> Path:
    """The name of the rows that an operator made of a whole group."""
    return rows / str(uid) / f"{operator}.{timeline}"


def write(path: Path, block: Block, facts: Facts) -> None:
    """Write the rows of this name; after it returns they are there, whole. Raises OSError, and leaves nothing, when there is no room."""
    from ..data.arrow import pa, to_arrow  # the controller reads no rows, so it does not wait for pyarrow

    head = _Head(FORMAT, path.name, _checksum(block, facts), facts, time.time_ns())
    batch = to_arrow(block, {KEY: msgspec.json.encode(head)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    _append(path.parent / f"{WRITER}{ENDING}", sink.getvalue())


def read(path: Path) -> tuple[Block, Facts]:
    """The rows of this name and what is known of them. Raises DataError for those that are missing, cut, changed, or of another format."""
    from ..data.arrow import from_arrow

    streams = _streams(path.parent)
    found = _latest(streams).get(path.name)
    if found is None or found.head is None:
        damaged = next((stream for stream in streams if stream.head is None), None)
        if damaged is not None:
            raise DataError(f"{path} is missing: {damaged.file} is no whole Arrow stream of a run to its end: {damaged.why}")
        raise DataError(f"{path} is missing: the ledger says that these rows were written")
    where, head = f"{path} in {found.file.name}", found.head
    if head.format != FORMAT:
        raise DataError(
            f"{where} has format {head.format}, this rlflow reads format {FORMAT}: resume the run with the rlflow that wrote it"
        )
    try:
        (batch,) = found.batches
        batch.validate(full=True)
        block = from_arrow(batch)
    except (DataError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise DataError(f"{where} is damaged: {error}") from error
    if _checksum(block, head.facts) != head.checksum:
        raise DataError(f"{where} is damaged: its rows are not those that were written (checksum)")
    return block, head.facts


def names(rows: Path, uid: int) -> set[str]:
    """What is there of a group, by name."""
    return set(_latest(_streams(rows / str(uid))))


def recycle(rows: Path, uids: Iterable[int]) -> None:
    """Delete all rows of these groups; of what is not there nothing is said."""
    for uid in uids:
        shutil.rmtree(rows / str(uid), ignore_errors=True)


def sweep(rows: Path, kept: Collection[Path]) -> None:
    """Delete all rows but these: what a killed process left half, or what its ledger had no time to name.

    A folder where some of these are missing stays as it is, for `read` to tell why. Raises DataError for rows of an older rlflow.
    """
    if old := next(rows.glob("*/*.arrow"), None):
        raise DataError(f"{old} was written by an older rlflow: resume the run with that one")
    wanted: dict[Path, set[str]] = {}
    for path in kept:
        wanted.setdefault(path.parent, set()).add(path.name)
    for folder in [folder for folder in rows.glob("*") if folder.is_dir()]:
        if folder not in wanted:
            shutil.rmtree(folder)
        else:
            _keep(folder, wanted[folder])


def _keep(folder: Path, wanted: set[str]) -> None:
    streams = _streams(folder)
    found = {name: stream for name, stream in _latest(streams).items() if name in wanted}
    if found.keys() < wanted:
        return
    for file in folder.iterdir():
        of_file = [stream for stream in streams if stream.file == file]
        stay = [stream for stream in of_file if stream.head is not None and found.get(stream.head.name) is stream]
        if not stay:
            file.unlink()
        elif len(stay) < len(of_file):
            half = file.with_suffix(".half")
            half.write_bytes(b"".join(stream.data for stream in stay))
            half.replace(file)


# --- the bytes ------------------------------------------------------------------------------------------------------------------------
def _append(file: Path, data: Any) -> None:
    """In one write, so that it costs one call; what does not fit is taken back before another thread can append behind it."""
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with _appending:
        try:
            descriptor = os.open(file, how, 0o644)
        except FileNotFoundError:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, how, 0o644)
        try:
            if (wrote := os.write(descriptor, data)) < len(data):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - wrote)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        finally:
            os.close(descriptor)


def _streams(folder: Path) -> list[_Stream]:
    return [stream for file in sorted(folder.glob(f"*{ENDING}")) for stream in _of_file(file)]


def _latest(streams: Iterable[_Stream]) -> dict[str, _Stream]:
    """By name."""
    whole = sorted(((stream.head, stream) for stream in streams if stream.head is not None), key=lambda pair: pair[0].written)
    return {head.name: stream for head, stream in whole}


def _of_file(file: Path) -> Iterator[_Stream]:
    from ..data.arrow import pa

    try:
        data = file.read_bytes()
    except FileNotFoundError:  # a run that goes on has deleted it meanwhile
        return
    source = pa.BufferReader(data)
    while (start := source.tell()) < len(data):
        try:
            reader = pa.ipc.open_stream(source)
            batches = list(reader)
            head = msgspec.json.decode((reader.schema.metadata or {}).get(KEY, b""), type=_Head)
        except (pa.ArrowException, OSError, ValueError, msgspec.DecodeError) as error:
            yield _Stream(file, data[start:], None, [], str(error))
            return
        yield _Stream(file, data[start : source.tell()], head, batches)


def _checksum(block: Block, facts: Facts) -> int:
    """CRC-32 over the facts and over names, kinds, offsets and values of all columns."""
    crc = zlib.crc32(msgspec.json.encode((facts, [(name, c.dtype, c.values.shape, c.axis) for name, c in block.columns.items()])))
    for column in block.columns.values():
        for array in (column.offsets, column.values):
            crc = zlib.crc32(b"none" if array is None else array.tobytes(), crc)
    return crc
