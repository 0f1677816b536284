"""What every pool does, whatever it is made of.

put(block) -> key     written once              the key is ~20 bytes on the wire
view(key) -> block    read-only, zero-copy      by any process of the run
release([key])        by the owner of the lane, at the last planned read
pin / unpin           a holder, by name, keeps a released bundle until it lets go
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from rlflow.data.batch import Block


class Key(msgspec.Struct, frozen=True, array_like=True):
    """Names one bundle: where it lies, and its serial, so that a key of released bytes is noticed."""

    lane: int
    offset: int
    nbytes: int
    rows: int
    serial: int  # 1, 2, ... within its lane, never twice: a later writer of the lane counts on above all before


class PoolStats(msgspec.Struct, frozen=True):
    """Of one lane, as its owner counts it. Bytes are those of the bundles, rounded up to 64 each."""

    lane: str
    capacity: int
    bytes: int
    keys: int
    peak_bytes: int
    pinned: int  # bundles that somebody pins
    held: int  # of those, released ones that wait for the last unpin


class Pool(Protocol):
    def put(self, block: Block, *, timeout: float = ...) -> Key:
        """Store a block in the own lane. Waits for room up to `timeout` seconds, then raises PoolFull."""
        ...

    def view(self, key: Key) -> Block:
        """The block, as read-only views that live as long as the process holds them. Raises PoolError for a released key."""
        ...

    def release(self, keys: Iterable[Key]) -> None:
        """Free bundles of the own lane. Raises PoolError, and frees nothing, if one is unknown, another lane's or released already."""
        ...

    def pin(self, key: Key, holder: str) -> None:
        """Keep a bundle of the own lane for `holder`, counted: released bytes are reused after the last unpin."""
        ...

    def unpin(self, key: Key, holder: str) -> None: ...

    def stats(self) -> PoolStats: ...

    def close(self) -> None: ...
