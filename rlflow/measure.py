"""Numbers that an operator reports beside its result: `note` in its body, `collected` around its call.

    collected()                        begins, in this thread
    operator: note("failed/timeout", 2) ... note("failed/timeout", 1) ... note_mean("reward/format", 3.0, rows=4)
    collected() == {"failed/timeout": 3.0, "reward/format#sum": 3.0, "reward/format#rows": 4.0}

Calls for other rows (other trajectories, ranks, parts of a batch) note the same names; `added` puts them together, and at the end
`settled` makes of each sum and its rows the mean that they are: {"failed/timeout": 3.0, "reward/format": 0.75}. `note_correlation`
does the same for a correlation.

Per thread, as trajectories run in threads of one process. Without a first `collected` (an operator called by a test, or by a
user's script) nothing is kept.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

__all__ = ["added", "collected", "note", "note_correlation", "note_mean", "pearson", "settled"]

SUM, ROWS = "#sum", "#rows"
PAIRS, MOMENTS = "#pairs", ("#x", "#y", "#xx", "#yy", "#xy")
NO_SPREAD = 1e-12  # of the mean square: less than that is rounding


class _Notes(threading.local):
    numbers: dict[str, float] | None = None  # None: nobody in this thread will ask


_notes = _Notes()


def note(name: str, value: float) -> None:
    """Add `value` to what `name` stands at since the last `collected` of this thread."""
    if _notes.numbers is not None:
        _notes.numbers[name] = _notes.numbers.get(name, 0.0) + value


def note_mean(name: str, total: float, *, rows: int) -> None:
    """A mean over rows, as its sum over the rows of this call and how many they are: of all calls together it is over all rows."""
    note(name + SUM, total)
    note(name + ROWS, float(rows))


def note_correlation(name: str, x: Sequence[float], y: Sequence[float]) -> None:
    """Pearson's correlation of two numbers a row, as the sums that it follows from: of all calls together it is over all rows."""
    for moment, value in zip(MOMENTS, _moments(x, y), strict=True):
        note(name + moment, value)
    note(name + PAIRS, float(len(x)))


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation, -1 .. 1; 0 where x or y is the same for all, or there are none.

    x = 1, 2, 3, 4 and y = 2, 1, 4, 3: 0.6.
    """
    return _pearson(float(len(x)), *_moments(x, y)) if x else 0.0


def _moments(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float, float, float]:
    pairs = list(zip(x, y, strict=True))
    xy = math.fsum(a * b for a, b in pairs)
    return math.fsum(x), math.fsum(y), math.fsum(a * a for a in x), math.fsum(b * b for b in y), xy


def collected() -> dict[str, float]:
    """What this thread has noted since its last call, and begin anew. The first call returns {} and begins."""
    numbers, _notes.numbers = _notes.numbers, {}
    return numbers or {}


def added(*several: Mapping[str, float]) -> dict[str, float]:
    """One dict of all names, each with its sum."""
    found: dict[str, float] = {}
    for numbers in several:
        for name, value in numbers.items():
            found[name] = found.get(name, 0.0) + value
    return found


def settled(numbers: Mapping[str, float]) -> dict[str, float]:
    """Means and correlations in place of the sums that they follow from; one of no row is left out."""
    found = {name: value for name, value in numbers.items() if not name.endswith((SUM, ROWS, PAIRS, *MOMENTS))}
    for name, rows in numbers.items():
        if rows and name.endswith(ROWS):
            found[name.removesuffix(ROWS)] = numbers.get(name.removesuffix(ROWS) + SUM, 0.0) / rows
        if rows and name.endswith(PAIRS):
            found[name.removesuffix(PAIRS)] = _pearson(rows, *(numbers[name.removesuffix(PAIRS) + moment] for moment in MOMENTS))
    return found


def _pearson(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    of_x, of_y = xx - x * x / n, yy - y * y / n
    if of_x <= NO_SPREAD * xx or of_y <= NO_SPREAD * yy:
        return 0.0
    return max(-1.0, min(1.0, (xy - x * y / n) / math.sqrt(of_x * of_y)))
