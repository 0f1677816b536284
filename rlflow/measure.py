"""Numbers that an operator reports beside its result: `note` in its body, `collected` around its call.

    collected()                        begins, in this thread
    operator: note("failed/timeout", 2) ... note("failed/timeout", 1) ... note_mean("reward/format", 3.0, rows=4)
    collected() == {"failed/timeout": 3.0, "reward/format#sum": 3.0, "reward/format#rows": 4.0}

Calls for other rows (other trajectories, ranks, parts of a batch) note the same names; `added` puts them together, and at the end
`settled` makes of each sum and its rows the mean that they are: {"failed/timeout": 3.0, "reward/format": 0.75}.

Per thread, as trajectories run in threads of one process. Without a first `collected` (an operator called by a test, or by a
user's script) nothing is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

__all__ = ["added", "collected", "note", "note_mean", "settled"]

SUM, ROWS = "#sum", "#rows"


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
    """The means in place of their sums and rows; a mean of no row is left out."""
    rows = {name.removesuffix(ROWS): value for name, value in numbers.items() if name.endswith(ROWS)}
    found = {name: value for name, value in numbers.items() if not name.endswith((SUM, ROWS))}
    return found | {name: numbers.get(name + SUM, 0.0) / count for name, count in rows.items() if count}
