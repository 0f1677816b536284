"""Which engine gets the next trajectory: the one with the most free room among those that serve the published version.

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
    """``O(log engines)`` a change; ties go to the engine that is named first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def offer(self, engine: Routed) -> None:
        """The room of this engine changed."""
        if engine.offered_room > 0:
            heapq.heappush(self._heap, (-engine.offered_room, engine.index))

    def best(self, engines: Sequence[E]) -> E | None:
        """The fit engine with the most room; None: no engine can take a trajectory now."""
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
