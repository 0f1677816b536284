"""The memory of a run: one unnamed file in /dev/shm a lane, held open by the controller.

    controller   ShmArena.create(["rollout", "host", "actor.0"])     handle() -> a small struct, as JSON on a command line
    worker       opens /proc/<controller>/fd/<n>, maps it            read-write for its own lane, read-only for all others

The files never have a name (O_TMPFILE), so nothing is left in /dev/shm whoever is killed when: the kernel frees the bytes with the last
process that maps them. A lane has one writer at a time, which holds a lock on it until it ends; a process that takes the place of a dead
one takes its lane over. Lanes are sparse: bytes are taken from /dev/shm when they are first used.

    lane   0  "RLFLANE2" · arena id (16 bytes) · lane number · pid of the writer · its generation: 1, 2, ... writers so far
           64 ...  bundles, each at a multiple of 64
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rlflow.errors import PoolError, PoolFull

SHM = "/dev/shm"
DEFAULT_CAPACITY = 1 << 30
LANE_HEAD = struct.Struct("<8s16sIII")  # magic, arena id, lane number, pid of the writer (0: none yet), generation of the writer
LANE_MAGIC = b"RLFLANE2"
FIRST = 64  # where bundles start
GRAIN = 64


class LaneHandle(msgspec.Struct, frozen=True):
    name: str
    fd: int
    capacity: int


class ArenaHandle(msgspec.Struct, frozen=True):
    """What a process needs to open the arena, as long as the controller lives."""

    arena: str  # hex id
    pid: int  # of the controller
    lanes: tuple[LaneHandle, ...]


class ShmArena:
    """The lanes of a run, made and kept open by the controller."""

    def __init__(self, handle: ArenaHandle) -> None:
        self._handle, self._open = handle, True

    @classmethod
    def create(cls, lanes: Sequence[str], capacity: int | None = None) -> ShmArena:
        """One lane a name, `capacity` bytes each (default: 1 GiB, or what /dev/shm has free if that is less).

        Raises PoolFull when /dev/shm has less free than one lane of the capacity asked for.
        """
        if len(set(lanes)) != len(lanes):
            raise PoolError(f"lane names repeat: {sorted(lanes)}")
        size, arena = _capacity(capacity), uuid.uuid4()
        opened = tuple(LaneHandle(name, _create(arena, i, size), size) for i, name in enumerate(lanes))
        return cls(ArenaHandle(arena.hex, os.getpid(), opened))

    def handle(self) -> ArenaHandle:
        return self._handle

    def close(self) -> None:
        """Nobody can open the lanes any more; those who map them go on."""
        if self._open and os.getpid() == self._handle.pid:
            for lane in self._handle.lanes:
                os.close(lane.fd)
        self._open = False

    def __enter__(self) -> ShmArena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Lane:
    """A mapped lane. fd, generation: of the writer only; the fd holds its lock, and takes bytes from /dev/shm."""

    name: str
    number: int
    memory: memoryview
    fd: int = -1
    generation: int = 0


def open_lane(handle: ArenaHandle, number: int, *, write: bool, take_over: bool = False) -> Lane:
    """Map a lane. take_over: one that a process which has ended wrote before.

    Raises PoolError when the controller is gone, or the lane has a writer, or had one and is not to be taken over (write=True).
    """
    lane = handle.lanes[number]
    path = f"/proc/{handle.pid}/fd/{lane.fd}"
    try:
        fd = os.open(path, os.O_RDWR if write else os.O_RDONLY)
    except OSError as error:
        why = f"{error.strerror}; is the controller (pid {handle.pid}) still running?"
        raise PoolError(f"cannot open lane `{lane.name}` of the pool at {path}: {why}") from error
    try:
        _verify(fd, handle, number)
        generation = _claim(fd, lane, number, handle, take_over) if write else 0
        mapped = mmap.mmap(fd, lane.capacity, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    except BaseException:
        os.close(fd)
        raise
    if not write:
        os.close(fd)
    return Lane(lane.name, number, memoryview(mapped), fd if write else -1, generation)


def _capacity(asked: int | None) -> int:
    stat = os.statvfs(SHM)
    free = stat.f_bavail * stat.f_frsize
    size = min(DEFAULT_CAPACITY, free) if asked is None else asked
    if size > free or size < 1 << 16:
        raise PoolFull(
            f"{SHM} has {free >> 20} MiB free, one lane of the pool is to hold {size / 2**20:.1f} MiB (at least 1/16): "
            f"ask for a smaller capacity, or enlarge it (`mount -o remount,size=8G {SHM}`; in a container `docker run --shm-size=8g`)"
        )
    return size // GRAIN * GRAIN


def _create(arena: uuid.UUID, number: int, size: int) -> int:
    fd = os.open(SHM, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    os.ftruncate(fd, size)
    os.pwrite(fd, LANE_HEAD.pack(LANE_MAGIC, arena.bytes, number, 0, 0), 0)
    return fd


def _verify(fd: int, handle: ArenaHandle, number: int) -> None:
    """The descriptor is this lane and not what another process now has under the same pid and number."""
    magic, arena, found, *_ = LANE_HEAD.unpack(os.pread(fd, LANE_HEAD.size, 0).ljust(LANE_HEAD.size, b"\0"))
    if (magic, arena, found) != (LANE_MAGIC, bytes.fromhex(handle.arena), number):
        lane = handle.lanes[number]
        raise PoolError(f"fd {lane.fd} of pid {handle.pid} is not lane `{lane.name}` of this pool: that controller is gone")


def _claim(fd: int, lane: LaneHandle, number: int, handle: ArenaHandle, take_over: bool) -> int:
    """Become its writer. The lock is the kernel's: it ends with the process, however that ends."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        writer = LANE_HEAD.unpack(os.pread(fd, LANE_HEAD.size, 0))[3]
        raise PoolError(f"lane `{lane.name}` is written by pid {writer or '?'}: a lane has one writer, make another lane") from None
    *_, writer, generation = LANE_HEAD.unpack(os.pread(fd, LANE_HEAD.size, 0))
    if writer and not take_over:
        raise PoolError(f"lane `{lane.name}` was written by pid {writer}, and may hold what others read: say which of its keys are live")
    os.pwrite(fd, LANE_HEAD.pack(LANE_MAGIC, bytes.fromhex(handle.arena), number, os.getpid(), generation + 1), 0)
    return int(generation) + 1
