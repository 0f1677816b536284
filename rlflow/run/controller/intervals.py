"""A set of integers that is mostly one long run: sorted, disjoint half-open intervals.

{0, 1, 2, 5} = [0, 3) [5, 6);  add 4 → [0, 3) [4, 6);  add 3 → [0, 6)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["IntervalSet"]


class IntervalSet:
    """Its size is that of its gaps, not of its members."""

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        """intervals: ``(start, stop)`` with start < stop, disjoint, in order."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in intervals:
            self._starts.append(start)
            self._stops.append(stop)

    def add(self, number: int) -> bool:
        """False if it was in already."""
        at = bisect_right(self._starts, number)
        if at and number < self._stops[at - 1]:
            return False
        touches_left = at > 0 and self._stops[at - 1] == number
        touches_right = at < len(self._starts) and self._starts[at] == number + 1
        if touches_left and touches_right:
            self._stops[at - 1] = self._stops[at]
            del self._starts[at], self._stops[at]
        elif touches_left:
            self._stops[at - 1] = number + 1
        elif touches_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._stops.insert(at, number + 1)
        return True

    def gaps(self, start: int, stop: int) -> Iterator[int]:
        """The numbers of ``start <= number < stop`` that are not in, ascending."""
        at = bisect_left(self._stops, start + 1)
        while start < stop:
            until = self._starts[at] if at < len(self._starts) else stop
            yield from range(start, min(until, stop))
            start = self._stops[at] if at < len(self._stops) else stop
            at += 1

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number)
        return at > 0 and number < self._stops[at - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, ``(start, stop)``."""
        return iter(zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """Members."""
        return sum(self._stops) - sum(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    @property
    def stop(self) -> int:
        """The highest member + 1; 0 of the empty set."""
        return self._stops[-1] if self._stops else 0
