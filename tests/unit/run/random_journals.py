"""Random journals that a run could leave: any rows, but only groups with a row are deleted, and a uid is finished once."""

from __future__ import annotations

import random

from rlflow.run.controller.ids import Span
from rlflow.run.controller.journal import (
    BatchRow,
    Change,
    Counters,
    EvaluationRow,
    Finished,
    GroupRow,
    PassRate,
    Pending,
    SavedRow,
    TimelineRow,
    TrajectoryRow,
)

BASES = (0, 2**31 - 2, 2**53 - 2)
REASONS = ("stale", "attempts", "trained", "")  # an operator may be named like a state


class Writer:
    """Draws one transaction after the other. base: where its numbers start."""

    def __init__(self, rng: random.Random, base: int = 0) -> None:
        self.rng, self.base = rng, base
        self.states: dict[int, str] = {}
        self.finished: set[int] = set()

    def transaction(self) -> list[Change]:
        kinds = (self.group, self.group, self.trajectory, self.trajectory, self.batch, self.evaluation, self.other, self.deletion)
        return [change for _ in range(self.rng.randrange(6)) for change in self.rng.choice(kinds)()]

    def number(self, most: int = 12) -> int:
        return self.base + self.rng.randrange(most)

    def sums(self, count: int) -> list[int]:
        return [self.rng.randrange(9) for _ in range(count)]

    def uid(self) -> int | None:
        uid = self.number()
        return None if uid in self.finished else uid

    def group(self) -> list[Change]:
        if (uid := self.uid()) is None:
            return []
        state = self.rng.choice(("running", "landed", "ready", "consumed", "trained", "dropped"))
        self.states[uid] = state
        over = state in ("trained", "dropped")
        reason = self.rng.choice(REASONS) if state == "dropped" else ""
        version = self.number() if over else -1
        return [GroupRow(uid, self.number(), state, self.number(), self.number(3), 1, version, reason, 'said: "nö"', *self.sums(5))]  # type: ignore[arg-type]

    def trajectory(self) -> list[Change]:
        uid = self.uid()
        if uid not in self.states:
            return []
        spans = tuple(Span(self.number(), 4 * i, 4 * i + 4) for i in range(self.rng.randrange(3)))
        state = self.rng.choice(("queued", "running", "landed", "dropped"))
        reason = self.rng.choice(REASONS[:-1]) if state == "dropped" else ""
        begin = (uid, self.rng.randrange(3), self.number(), self.number(), state)
        return [TrajectoryRow(*begin, "engine.1", 2, spans, 0, *self.sums(2), reason)]  # type: ignore[arg-type]

    def batch(self) -> list[Change]:
        state = self.rng.choice(("queued", "training", "trained", "covered", "undone"))
        groups = tuple(self.number() for _ in range(self.rng.randrange(4)))
        return [BatchRow(self.number(3), self.number(4), state, groups)]  # type: ignore[arg-type]

    def evaluation(self) -> list[Change]:
        state = self.rng.choice(("due", "pinned", "scored", "covered", "undone"))
        return [EvaluationRow(self.number(4), state, self.number(3), self.number(), self.rng.choice((None, 0.1, -1e300)))]  # type: ignore[arg-type]

    def other(self) -> list[Change]:
        number = self.number
        return [
            self.rng.choice(
                (
                    TimelineRow(number(3), number(), 2, 4, 1, number(), self.rng.choice(((), ("filter", "advantage")))),
                    SavedRow(number(3), number()),
                    PassRate(number(4), self.rng.choice((0, 8, 8)), self.rng.randrange(9), number(3)),
                    Counters(self.base, number(), number(), number(), self.rng.choice((-1, number()))),
                )
            )
        ]

    def deletion(self) -> list[Change]:
        """Some groups go back to pending, or all that are over are finished."""
        over = sorted(uid for uid, state in self.states.items() if state in ("trained", "dropped"))
        if self.rng.random() < 0.5:
            self.finished.update(over)
            gone = over
        else:
            gone = self.rng.sample(sorted(self.states), min(2, len(self.states)))
        for uid in gone:
            del self.states[uid]
        return [Finished(tuple(gone)) if gone == over and set(gone) <= self.finished else Pending(tuple(gone))]
