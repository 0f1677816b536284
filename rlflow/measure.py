"""Numbers that an operator reports beside its result: `note` in its body, `collected` around its call.

    collected()                        begins, in this thread
    operator: note("failed/timeout", 2) ... note("failed/timeout", 1)
    collected() == {"failed/timeout": 3.0}

Per thread, as trajectories run in threads of one process. Without a first `collected` (an operator called by a test, or by a
user's script) nothing is kept.
"""

from __future__ import annotations

import threading

__all__ = ["collected", "note"]


class _Notes(threading.local):
    numbers: dict[str, float] | None = None  # None: nobody in this thread will ask


_notes = _Notes()


def note(name: str, value: float) -> None:
    """Add `value` to what `name` stands at since the last `collected` of this thread."""
    if _notes.numbers is not None:
        _notes.numbers[name] = _notes.numbers.get(name, 0.0) + value


def collected() -> dict[str, float]:
    """What this thread has noted since its last call, and begin anew. The first call returns {} and begins."""
    numbers, _notes.numbers = _notes.numbers, {}
    return numbers or {}
