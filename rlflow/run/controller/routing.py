"""Which engine gets the next trajectory: the one that its siblings went to, which holds their prefix, else the one with the most free room.

Only engines that serve the published version count. What a sibling's engine has no room for goes elsewhere, so nothing waits for a prefix.

A heap of (-room, index) entries that are checked when they come up: an entry that no longer tells the truth is thrown away.
Every change of an engine's room offers a new entry, so the true one of each fit engine is always there.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Routing"]


class Routed(Protocol):
    index: int

    @property
    def offered_room(self) -> int:
        """Trajectories that may be sent now; 0 unless the engine serves the published version."""
        ...


E = TypeVar("E", bound=Routed)


class Routing:
    """``O(log engines)`` a change; ties go to the engine that is named first.

    Example: engines a and b with room for 3 and 2. Of two groups of two, the first goes to a, the second to b.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def offer(self, engine: Routed) -> None:
        """The room of this engine changed."""
        room = engine.offered_room
        if room > 0:
            heapq.heappush(self._heap, (-room, engine.index))

    def best(self, engines: Sequence[E], near: E | None = None) -> E | None:
        """``near`` while it has room, else the fit engine with the most room; None: no engine can take a trajectory now."""
        if near is not None and near.offered_room > 0:
            return near
        self._rebuild_if_grown(engines)
        while self._heap:
            room, index = self._heap[0]
            if engines[index].offered_room == -room:
                return engines[index]
            heapq.heappop(self._heap)
        return None

    def _rebuild_if_grown(self, engines: Sequence[Routed]) -> None:
        if len(self._heap) > 64 + 4 * len(engines):
            self._heap = [(-engine.offered_room, engine.index) for engine in engines if engine.offered_room > 0]
            heapq.heapify(self._heap)
