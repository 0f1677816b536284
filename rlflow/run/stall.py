"""Who waits for whom, told when nothing has happened for long.

Arm ──▶ begin(name) ... end(name) ◀── Disarm        event ──▶ heard()        stalled(): what is armed and what was called, oldest first
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .controller.state import State
from .controller.waits import WAITS

MOST = 8  # lines of each kind: the oldest say enough


@dataclass(frozen=True)
class Outstanding:
    """A call that was not answered: of what, by which process, since when (monotonic seconds)."""

    what: str
    process: str
    since: float


class Waits:
    """Since when every wait runs. stall: seconds without an event after which they are told, and again after as many."""

    def __init__(self, stall: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.stall, self.clock = stall, clock
        self._since: dict[str, float] = {}
        self._heard = self._told = clock()

    def begin(self, name: str) -> None:
        self._since[name] = self.clock()

    def end(self, name: str) -> None:
        self._since.pop(name, None)

    def heard(self) -> None:
        self._heard = self._told = self.clock()

    def seconds_left(self) -> float:
        """Until a stall would be one."""
        return max(self._told + self.stall - self.clock(), 0.01)

    def stalled(self, state: State, calls: Iterable[Outstanding]) -> str | None:
        """Who waits for whom and since when, if it is time to say so."""
        now = self.clock()
        if now - self._told < self.stall:
            return None
        self._told = now
        return describe(now - self._heard, state, {name: now - since for name, since in self._since.items()}, list(calls), now)


def describe(silent: float, state: State, waits: Mapping[str, float], calls: list[Outstanding], now: float) -> str:
    """waits: seconds by name of those that were armed."""
    running = sorted(((seconds, name) for name, seconds in waits.items() if name in state.armed), reverse=True)
    lines = [f"nothing has happened for {silent:.0f} s; at version {state.published}, {state.in_flight} trajectories in flight"]
    lines += [f"  {name} waits {seconds:.0f} s for {WAITS[state.armed[name].kind].waits_for}" for seconds, name in running[:MOST]]
    lines += [f"  ... and {len(running) - MOST} more waits"] if len(running) > MOST else []
    calls.sort(key=lambda call: call.since)
    lines += [f"  {call.process} has not answered {call.what} for {now - call.since:.0f} s" for call in calls[:MOST]]
    lines += [f"  ... and {len(calls) - MOST} more calls"] if len(calls) > MOST else []
    return "\n".join(lines)
