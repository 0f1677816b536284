"""The blocks that lie in the pool and will be read again, as the controller counts them. Everybody who makes or frees one says so here.

put(key) ──▶ held ──▶ free([key]): the process that writes its lane is told
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..data.pool.protocol import Key


class Blocks:
    """outstanding: bytes held now; peak: the most since `reset_peak`. release: tells the owners of the lanes."""

    def __init__(self, release: Callable[[Iterable[Key]], None]) -> None:
        self.outstanding = self.peak = 0
        self._release = release
        self._held: dict[int, set[Key]] = {}  # by lane

    def put(self, key: Key) -> None:
        self._held.setdefault(key.lane, set()).add(key)
        self.outstanding += key.nbytes
        self.peak = max(self.peak, self.outstanding)

    def free(self, keys: Iterable[Key]) -> None:
        """They will not be read again. Raises KeyError for one that is freed twice or was never put: a fault of ours."""
        freed = tuple(keys)
        for key in freed:
            self._held[key.lane].remove(key)
            self.outstanding -= key.nbytes
        if freed:
            self._release(freed)

    def of_lane(self, lane: int) -> tuple[Key, ...]:
        """What whoever takes this lane over has to keep."""
        return tuple(self._held.get(lane, ()))

    def reset_peak(self) -> None:
        self.peak = self.outstanding
