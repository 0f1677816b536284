"""Which bytes of a lane are free: first fit, neighbours joined on return. Pure bookkeeping, no memory behind it.

holes  [0, 64) [192, 1024)     take(64) -> 0     give(64, 128) -> [64, 1024)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class FreeList:
    """Holes as two lists, sorted by start; no two touch."""

    def __init__(self, start: int, end: int) -> None:
        self.starts, self.ends = [start], [end]

    @property
    def nbytes(self) -> int:
        return sum(self.ends) - sum(self.starts)

    def take(self, nbytes: int) -> int | None:
        """The lowest place with room, or None."""
        for i, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            if end - start >= nbytes:
                self.starts[i] += nbytes
                if self.starts[i] == end:
                    del self.starts[i], self.ends[i]
                return start
        return None

    def cut(self, start: int, nbytes: int) -> None:
        """Take these very bytes, which must be free."""
        end, i = start + nbytes, bisect_right(self.starts, start) - 1
        assert i >= 0, "taken already"
        assert end <= self.ends[i], "taken already"
        pieces = [(a, b) for a, b in ((self.starts[i], start), (end, self.ends[i])) if a < b]
        self.starts[i : i + 1], self.ends[i : i + 1] = [a for a, _ in pieces], [b for _, b in pieces]

    def give(self, start: int, nbytes: int) -> None:
        """Return what was taken."""
        end, i = start + nbytes, bisect_left(self.starts, start)
        assert i == 0 or self.ends[i - 1] <= start, "given back twice"
        assert i == len(self.starts) or end <= self.starts[i], "given back twice"
        if i < len(self.starts) and self.starts[i] == end:
            end = self.ends[i]
            del self.starts[i], self.ends[i]
        if i > 0 and self.ends[i - 1] == start:
            self.ends[i - 1] = end
        else:
            self.starts.insert(i, start)
            self.ends.insert(i, end)
