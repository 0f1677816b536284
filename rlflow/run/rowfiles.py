"""Rows that outlive their process: the block of a trajectory or of a group as one Arrow stream.

    rows/UID/WRITER.arrows       streams, one behind the other, all that one process wrote of a group:
        TRAJ_UID.ATTEMPT         what one trajectory left
        OPERATOR.TIMELINE        what an operator of the whole group made
    rows/UID/NAME.arrow          the same as an Arrow file, one a name, of an rlflow that wrote format 1: read and deleted, never written

    write: one append, whole or taken back ──event──▶ decide

A stream is complete before the event that names it is decided, so the ledger names no half one; a killed process may leave half a stream
at the end of its file, which nobody else ever appends to. (Not a file a trajectory: to make and delete hundreds a step can cost more
than all that is written into them.) A checksum over all columns and facts is in the schema's metadata of each stream: one that was cut or
changed is told, never trained. ``recycle`` and ``sweep`` delete.
"""

from __future__ import annotations

import os
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from ..disk import write_all
from ..errors import DataError
from .controller.ids import TrajectoryId

if TYPE_CHECKING:
    from ..data.batch import Block

FORMAT, OLD_FORMAT = 2, 1
KEY = b"rlflow.rows"
ENDING, OLD_ENDING = ".arrows", ".arrow"
MAGIC = 8  # bytes of an Arrow file before the stream that is in it
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
    checksum: int
    facts: Facts
    name: str = ""  # in format 1 that of the file
    written: int = 0  # by the clock, in ns: of two streams of one name the later one counts


class _Stream(NamedTuple):
    """One stream of a file: where its bytes are, and what is in them; head None for what is none, which is the rest of the file then."""

    file: Path
    start: int
    end: int
    head: _Head | None
    why: str = ""

    def data(self) -> bytes:
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)


def trajectory_rows(rows: Path, trajectory: TrajectoryId) -> Path:
    """The name of the rows of one trajectory, as a path. rows: the folder ``rows`` of the run."""
    return rows / str(trajectory.uid) / f"{trajectory.traj_uid}.{trajectory.attempt}"


def group_rows(rows: Path, uid: int, operator: str, timeline: int) -> Path:
    """The name of the rows that an operator made of a whole group."""
    return rows / str(uid) / f"{operator}.{timeline}"


def write(path: Path, block: Block, facts: Facts) -> None:
    """Write the rows of this name; after it returns they are there, whole. Raises OSError, and leaves nothing, when there is no room."""
    from ..data.arrow import pa, to_arrow  # only where rows are: the controller of a new run does not wait for pyarrow

    head = _Head(FORMAT, _checksum(block, facts), facts, path.name, time.time_ns())
    batch = to_arrow(block, {KEY: msgspec.json.encode(head)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    _append(path.parent / f"{WRITER}{ENDING}", sink.getvalue())


def read(path: Path) -> tuple[Block, Facts]:
    """The rows of this name and what is known of them. Raises DataError for those that are missing, cut, changed, or of another format."""
    from ..data.arrow import from_arrow, pa

    streams = _streams(path.parent)
    found = _latest(streams).get(path.name)
    if found is None or found.head is None:
        damaged = next((stream for stream in streams if stream.head is None), None)
        if damaged is not None:
            raise DataError(f"{path} is missing: {damaged.file} is no whole Arrow stream of a run to its end: {damaged.why}")
        raise DataError(f"{path} is missing: the ledger says that these rows were written")
    where, head = f"{path} in {found.file.name}", found.head
    if head.format not in (FORMAT, OLD_FORMAT):
        raise DataError(
            f"{where} has format {head.format}, this rlflow reads format {FORMAT}: resume the run with the rlflow that wrote it"
        )
    try:
        (batch,) = pa.ipc.open_stream(found.data())
        batch.validate(full=True)
        block = from_arrow(batch)
    except (DataError, pa.ArrowException, OSError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise DataError(f"{where} is damaged: {error}") from error
    if _checksum(block, head.facts) != head.checksum:
        raise DataError(f"{where} is damaged: its rows are not those that were written (checksum)")
    return block, head.facts


def names(rows: Path, uid: int) -> set[str]:
    """What is there of a group, by name."""
    return set(_latest(_streams(rows / str(uid))))


def newest(names: Iterable[str], operator: str) -> str | None:
    """Of these rows of a group those that this operator made last: it ran again only where its first word was taken back."""
    made = [int(timeline) for by, _, timeline in (name.rpartition(".") for name in names) if by == operator]
    return f"{operator}.{max(made)}" if made else None


def recycle(rows: Path, uids: Iterable[int]) -> None:
    """Delete all rows of these groups; of what is not there nothing is said."""
    for uid in uids:
        shutil.rmtree(rows / str(uid), ignore_errors=True)


def sweep(rows: Path, trajectories: Iterable[TrajectoryId], made: Mapping[int, Collection[str]]) -> None:
    """Delete all rows but those of these trajectories and the newest that these operators made, by uid, if they made any.

    What goes a killed process left half, or its ledger had no time to name. A folder where rows of a trajectory are missing stays as it
    is, for `read` to tell why.
    """
    wanted: dict[Path, set[str]] = {}
    for path in (trajectory_rows(rows, trajectory) for trajectory in trajectories):
        wanted.setdefault(path.parent, set()).add(path.name)
    for folder in [folder for folder in rows.glob("*") if folder.is_dir()]:
        if folder not in wanted:
            shutil.rmtree(folder)
        else:
            _keep(folder, wanted[folder], made.get(int(folder.name), ()))


def _keep(folder: Path, wanted: Collection[str], operators: Collection[str]) -> None:
    streams = _streams(folder)
    there = _latest(streams)
    if not there.keys() >= set(wanted):
        return
    kept = {*wanted, *(newest(there, operator) for operator in operators)}
    for file in folder.iterdir():
        of_file = [stream for stream in streams if stream.file == file]
        stay = [stream for stream in of_file if stream.head is not None and stream.head.name in kept and there[stream.head.name] is stream]
        if not stay:
            file.unlink()
        elif len(stay) < len(of_file):
            half = file.with_suffix(".half")
            half.write_bytes(b"".join(stream.data() for stream in stay))
            half.replace(file)


# --- the bytes ------------------------------------------------------------------------------------------------------------------------
def _append(file: Path, data: Any) -> None:
    """In one write, as a rule, so that it costs one call; what does not fit is taken back before another thread can append behind it."""
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with _appending:
        try:
            descriptor = os.open(file, how, 0o644)
        except FileNotFoundError:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, how, 0o644)
        before = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, data, file)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        finally:
            os.close(descriptor)


def _streams(folder: Path) -> list[_Stream]:
    return [stream for file in sorted(folder.glob("*")) if file.suffix in (ENDING, OLD_ENDING) for stream in _of_file(file)]


def _latest(streams: Iterable[_Stream]) -> dict[str, _Stream]:
    """By name."""
    whole = sorted(((stream.head, stream) for stream in streams if stream.head is not None), key=lambda pair: pair[0].written)
    return {head.name: stream for head, stream in whole}


def _of_file(file: Path) -> list[_Stream]:
    try:
        with file.open("rb") as data:
            return _old_stream(file, data) if file.suffix == OLD_ENDING else _all_streams(file, data)
    except FileNotFoundError:  # a run that goes on has deleted it meanwhile
        return []


def _all_streams(file: Path, data: BinaryIO) -> list[_Stream]:
    streams, size = list[_Stream](), os.fstat(data.fileno()).st_size
    while (start := streams[-1].end if streams else 0) < size:
        streams.append(_stream(file, data, start, size))
    return streams


def _old_stream(file: Path, data: BinaryIO) -> list[_Stream]:
    """The one behind the magic of an Arrow file; where its batches are, the rest of the file says again."""
    one = _stream(file, data, MAGIC, os.fstat(data.fileno()).st_size)
    return [one if one.head is None else one._replace(head=msgspec.structs.replace(one.head, name=file.stem))]


def _stream(file: Path, data: BinaryIO, start: int, size: int) -> _Stream:
    """The one that starts here. Its rows are not looked at, whatever they are: only how long they are."""
    from ..data.arrow import pa

    try:
        schema, end = _message(data, start, size)
        head = msgspec.json.decode((pa.ipc.read_schema(pa.py_buffer(schema)).metadata or {}).get(KEY, b""), type=_Head)
        more = schema
        while more:
            more, end = _message(data, end, size)
    except (pa.ArrowException, OSError, ValueError, struct.error, msgspec.DecodeError) as error:
        return _Stream(file, start, size, None, str(error))
    return _Stream(file, start, end, head)


def _message(data: BinaryIO, start: int, size: int) -> tuple[bytes, int]:
    """A message of an Arrow stream without its body, b"" for the end of the stream, and where the next one starts. Raises ValueError.

    -1 as int32, length as int32, so many bytes of a flatbuffer, body: https://arrow.apache.org/docs/format/Columnar.html
    """
    data.seek(start)
    prefix = data.read(8)
    mark, length = struct.unpack("<ii", prefix)
    if mark != -1 or not 0 <= length <= size - start - 8:
        raise ValueError(f"no message of a stream is at byte {start}, or it is cut")
    if length == 0:
        return b"", start + 8
    flat = data.read(length)
    body = _body_length(flat)
    if not 0 <= body <= size - start - 8 - length:
        raise ValueError(f"the rows of the message at byte {start} are cut")
    return prefix + flat, start + 8 + length + body


def _body_length(flat: bytes) -> int:
    """The fourth field of the table `Message`, an int64; one that is not in its vtable is 0."""
    (table,) = struct.unpack_from("<I", flat)
    vtable = table - struct.unpack_from("<i", flat, table)[0]
    (size,) = struct.unpack_from("<H", flat, vtable)
    (at,) = struct.unpack_from("<H", flat, vtable + 10) if size >= 12 else (0,)
    return int(struct.unpack_from("<q", flat, table + at)[0]) if at else 0


def _checksum(block: Block, facts: Facts) -> int:
    """CRC-32 over the facts and over names, kinds, offsets and values of all columns."""
    crc = zlib.crc32(msgspec.json.encode((facts, [(name, c.dtype, c.values.shape, c.axis) for name, c in block.columns.items()])))
    for column in block.columns.values():
        for array in (column.offsets, column.values):
            crc = zlib.crc32(b"none" if array is None else array.tobytes(), crc)
    return crc
