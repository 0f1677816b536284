"""The watermark W: how many trajectories are in flight at most. It follows the slower side of the ring, a step at a time.

    the trainer waited for a batch while W alone kept room on the engines empty        ──→ up
    a whole batch is ready, and none may be formed or the queue takes no more          ──→ down
    both in one train step, or neither                                                 ──→ as it is

A trainer that waits is answered at once; less is sent only when ``PATIENCE`` train steps in a row ask for it, as a step that is lost costs
more than samples that are older. When the trainer is the slower side a smaller W makes the same batches of younger samples.
A watermark that is given is fixed: whoever names a number means it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["PATIENCE", "Watermark"]

PATIENCE: dict[Literal["up", "down"], int] = {"up": 1, "down": 6}
"""Train steps in a row that ask for the same before W moves, and again after it has moved."""
STARVED = "the trainer waited for a batch while engines had room"


@dataclass(slots=True)
class Watermark:
    """Trajectories, within [lowest, highest]; a fixed one never moves.

    Example: lowest 2, highest 16, step 2, value 16: six steps in which a batch was ready too early make it 14.
    """

    value: int
    lowest: int
    highest: int
    step: int
    fixed: bool = False
    raised: int = 0
    """Times that it was raised."""
    lowered: int = 0
    reason: str = ""
    """Of the last change."""
    starved: bool = False
    """Since the last train step the trainer waited, and only W kept engines from working."""
    piled: str = ""
    """Why, since the last train step, a ready batch did not board."""
    asked: Literal["", "up", "down"] = ""
    in_a_row: int = 0

    def end_of_step(self) -> None:
        """A batch is trained: move, if this step and those before it ask for the same."""
        asked: Literal["", "up", "down"] = "" if self.starved == bool(self.piled) else "up" if self.starved else "down"
        self.in_a_row = self.in_a_row + 1 if asked and asked == self.asked else int(asked != "")
        self.asked = asked
        if asked and self.in_a_row == PATIENCE[asked]:
            self.in_a_row = 0
            self._move(self.step if asked == "up" else -self.step, STARVED if asked == "up" else self.piled)
        self.starved, self.piled = False, ""

    def _move(self, by: int, reason: str) -> None:
        value = min(max(self.value + by, self.lowest), self.highest)
        if self.fixed or value == self.value:
            return
        self.raised += value > self.value
        self.lowered += value < self.value
        self.value, self.reason = value, f"{self.value} to {value}: {reason}"
