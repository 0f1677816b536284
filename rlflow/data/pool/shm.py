"""The pool of one host: put copies once into the own lane, view maps.

put       free list finds room (or waits) → bytes are taken from /dev/shm → columns are copied → Key
view      head at key.offset must carry key.serial, which release wipes: a stale key is an error, not other rows
release   by the owner, told by the controller; a bundle that somebody pins is held until the last unpin
attach    with the keys that are still live: the lane of a process that has ended, taken over by the one in its place

bundle    free → put → (pinned) → released → (held while pinned) → free
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from rlflow.data import layout
from rlflow.data.batch import Block
from rlflow.errors import PoolError, PoolFull

from .arena import FIRST, GRAIN, ArenaHandle, Lane, open_lane
from .freelist import FreeList
from .protocol import Key, PoolStats

GROW = 4 << 20  # bytes taken from /dev/shm at a time
GENERATION = 40  # bits of a serial below the number of its writer: 10^12 bundles each
RETRY = 0.2  # seconds: another process may have given /dev/shm bytes back, which nobody tells us


class ShmPool:
    """One process's end of the arena. Threads may share it; a forked child may only view."""

    def __init__(self, lanes: tuple[Lane, ...], own: Lane | None, live: Iterable[Key] = ()) -> None:
        self._lanes = lanes
        self._own = None if own is None else _Writer(own, live)

    @classmethod
    def attach(cls, handle: ArenaHandle, lane: str | None = None, *, live: Iterable[Key] | None = None) -> ShmPool:
        """Map every lane; `lane` is the one this process writes (None: it only reads).

        live: given, the lane is taken over from a process that has ended: these of its bundles stay, all other bytes are free again.
        Raises PoolError.
        """
        names = [entry.name for entry in handle.lanes]
        if lane is not None and lane not in names:
            raise PoolError(f"the pool has no lane `{lane}`: there are {', '.join(names)}")
        own = None if lane is None else open_lane(handle, names.index(lane), write=True, take_over=live is not None)
        return cls(tuple(open_lane(handle, i, write=False) for i in range(len(names))), own, live or ())

    def put(self, block: Block, *, timeout: float = 30.0) -> Key:
        """Store a block in the own lane. Waits for room up to `timeout` seconds, then raises PoolFull."""
        return self._writer("put").put(block, timeout)

    def view(self, key: Key) -> Block:
        """The block, as read-only views that live as long as the process holds them. Raises PoolError for a released or unknown key."""
        if not 0 <= key.lane < len(self._lanes):
            raise PoolError(f"{key} names lane {key.lane}: the pool has {len(self._lanes)}")
        lane = self._lanes[key.lane]
        if not FIRST <= key.offset <= key.offset + key.nbytes <= len(lane.memory) or key.nbytes < layout.HEAD.size:
            raise PoolError(f"{key} lies outside lane `{lane.name}` of {len(lane.memory)} bytes")
        memory = lane.memory[key.offset : key.offset + key.nbytes]
        if layout.head_of(memory) != (key.serial, key.nbytes):
            raise PoolError(f"{key} of lane `{lane.name}` is stale: its bytes were released (or never written)")
        return layout.read(memory)

    def release(self, keys: Iterable[Key]) -> None:
        """Free bundles of the own lane. Raises PoolError, and frees nothing, if one is unknown, another lane's or released already."""
        self._writer("release").release(list(keys))

    def pin(self, key: Key, holder: str) -> None:
        """Keep a bundle of the own lane for `holder`, counted. Raises PoolError for a released key."""
        self._writer("pin").pin(key, holder)

    def unpin(self, key: Key, holder: str) -> None:
        """Take one pin back. Raises PoolError where `holder` has none."""
        self._writer("unpin").unpin(key, holder)

    def stats(self) -> PoolStats:
        """Of the own lane."""
        return self._writer("stats").stats()

    def close(self) -> None:
        """Let go of the lanes. Views that are still held stay good; the kernel frees the bytes after the last of all processes."""
        if self._own is not None:
            self._own.close()
        self._lanes, self._own = (), None

    def _writer(self, what: str) -> _Writer:
        if self._own is None:
            raise PoolError(f"cannot {what}: this process only reads the pool; attach it with a lane")
        return self._own


@dataclass
class _Bundle:
    key: Key
    released: bool = False
    pins: Counter[str] = field(default_factory=Counter)


class _Writer:
    """The own lane: who lies where, what is free, what is backed by bytes of /dev/shm."""

    def __init__(self, lane: Lane, live: Iterable[Key]) -> None:
        self._lane, self._pid = lane, os.getpid()
        self._free = FreeList(FIRST, len(lane.memory))
        self._bundles: dict[int, _Bundle] = {}  # by offset
        self._backed = 0  # bytes below this can be touched: beyond, a full /dev/shm would kill us with SIGBUS
        self._bytes = self._peak = 0
        self._serial = (lane.generation - 1) << GENERATION  # those of the writers before are not used again
        self._room = threading.Condition()
        self._take_over(live)

    def _take_over(self, live: Iterable[Key]) -> None:
        """The bundles that stay, as if we had put them; every other key of the writer before is stale from now on.

        Raises PoolError for a key of bytes that do not carry it.
        """
        for key in live:
            head = self._lane.memory[key.offset : key.offset + layout.HEAD.size]
            if key.lane != self._lane.number or len(head) < layout.HEAD.size or layout.head_of(head) != (key.serial, key.nbytes):
                raise PoolError(f"{key} is not in lane `{self._lane.name}`: it cannot be taken over")
            self._free.cut(key.offset, key.nbytes)
            self._bundles[key.offset] = _Bundle(key)
            self._bytes += key.nbytes
        self._peak = self._bytes
        if self._lane.generation > 1:
            self._wipe(os.lseek(self._lane.fd, 0, os.SEEK_HOLE))

    def _wipe(self, end: int) -> None:
        """Wipe what looks like a head in the free bytes before `end`, beyond which nothing was ever written."""
        grains = np.frombuffer(self._lane.memory[: end // GRAIN * GRAIN], np.uint8).reshape(-1, GRAIN)
        heads = np.flatnonzero(grains[:, : len(layout.MAGIC)].copy().view(np.uint32)[:, 0] == np.frombuffer(layout.MAGIC, np.uint32)[0])
        for start, stop in zip(self._free.starts, self._free.ends, strict=True):
            for head in heads[np.searchsorted(heads, start // GRAIN) : np.searchsorted(heads, stop // GRAIN)]:
                self._lane.memory[head * GRAIN : head * GRAIN + layout.HEAD.size] = bytes(layout.HEAD.size)

    # --- put -------------------------------------------------------------------------------------
    def put(self, block: Block, timeout: float) -> Key:
        self._check_process("put")
        laid = layout.plan(block)
        key = self._reserve(laid.nbytes, block.rows, timeout)
        try:
            layout.write(laid, self._lane.memory[key.offset : key.offset + key.nbytes], key.serial)
        except BaseException:
            self.release([key])  # nobody else knows the key
            raise
        return key

    def _reserve(self, nbytes: int, rows: int, timeout: float) -> Key:
        deadline = time.monotonic() + timeout
        with self._room:
            while (offset := self._find(nbytes)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or nbytes > len(self._lane.memory) - FIRST:
                    raise self._full(nbytes, timeout)
                self._room.wait(min(remaining, RETRY))
            self._serial += 1
            self._bytes += nbytes
            self._peak = max(self._peak, self._bytes)
            key = Key(self._lane.number, offset, nbytes, rows, self._serial)
            self._bundles[offset] = _Bundle(key)
            return key

    def _find(self, nbytes: int) -> int | None:
        offset = self._free.take(nbytes)
        if offset is None or self._back(offset + nbytes):
            return offset
        self._free.give(offset, nbytes)
        return None

    def _back(self, end: int) -> bool:
        """Take bytes from /dev/shm up to `end`; False if it is full."""
        if end <= self._backed:
            return True
        for goal in (min(max(end, self._backed + GROW), len(self._lane.memory)), end):
            try:
                os.posix_fallocate(self._lane.fd, self._backed, goal - self._backed)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
            else:
                self._backed = goal
                return True
        return False

    def _full(self, nbytes: int, timeout: float) -> PoolFull:
        capacity = len(self._lane.memory) - FIRST
        where = f"the shm pool, lane `{self._lane.name}`"
        outstanding = f"{self._bytes} of {capacity} bytes are outstanding in {len(self._bundles)} keys"
        if nbytes > capacity:
            return PoolFull(f"{where}: {nbytes} bytes can never fit, {outstanding}: raise the capacity of a lane, or put smaller blocks")
        return PoolFull(
            f"{where}: no room for {nbytes} bytes within {timeout:g} s, {outstanding}, {self._backed} bytes of /dev/shm are taken: "
            "release keys earlier, lower the number of trajectories in flight, or raise the capacity of a lane (and the size of /dev/shm)"
        )

    # --- release and pins ------------------------------------------------------------------------
    def release(self, keys: list[Key]) -> None:
        self._check_process("release")
        with self._room:
            bundles = [self._bundle(key) for key in keys]
            twice = [key for key, count in Counter(keys).items() if count > 1]
            if twice:
                raise PoolError(f"{twice[0]} is released twice in one call")
            for bundle in bundles:
                bundle.released = True
                self._reclaim(bundle)
            self._room.notify_all()

    def pin(self, key: Key, holder: str) -> None:
        self._check_process("pin")
        with self._room:
            self._bundle(key).pins[holder] += 1

    def unpin(self, key: Key, holder: str) -> None:
        self._check_process("unpin")
        with self._room:
            bundle = self._bundles.get(key.offset)
            if bundle is None or bundle.key != key or not bundle.pins[holder]:
                raise PoolError(f"`{holder}` has no pin on {key} of lane `{self._lane.name}`")
            bundle.pins -= Counter([holder])
            self._reclaim(bundle)
            self._room.notify_all()

    def _reclaim(self, bundle: _Bundle) -> None:
        if not bundle.released or bundle.pins:
            return
        key = bundle.key
        self._lane.memory[key.offset : key.offset + layout.HEAD.size] = bytes(layout.HEAD.size)
        del self._bundles[key.offset]
        self._bytes -= key.nbytes
        self._free.give(key.offset, key.nbytes)

    def _bundle(self, key: Key) -> _Bundle:
        bundle = self._bundles.get(key.offset)
        if key.lane != self._lane.number:
            raise PoolError(f"{key} is of lane {key.lane}: this process owns lane {self._lane.number} (`{self._lane.name}`)")
        if bundle is None or bundle.key != key:
            raise PoolError(f"{key} is not in lane `{self._lane.name}`: it was released before, or never put")
        if bundle.released:
            raise PoolError(f"{key} of lane `{self._lane.name}` was released before, pins of {', '.join(bundle.pins)} hold it")
        return bundle

    def stats(self) -> PoolStats:
        with self._room:
            pinned = [b for b in self._bundles.values() if b.pins]
            held = sum(b.released for b in pinned)
            capacity = len(self._lane.memory) - FIRST
            return PoolStats(self._lane.name, capacity, self._bytes, len(self._bundles), self._peak, len(pinned), held)

    def close(self) -> None:
        if os.getpid() == self._pid:
            os.close(self._lane.fd)

    def _check_process(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise PoolError(
                f"cannot {what}: lane `{self._lane.name}` is written by pid {self._pid}, this is its fork {os.getpid()}: attach another"
            )
