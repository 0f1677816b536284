"""What was kept and what was dropped, in sums: how long answers are, and how many of them are right, on both sides.

A rule that drops groups is harmless only if what it drops is like what it keeps. What is dropped while it runs is dropped for being slow,
and what a filter takes out of a group that goes on may have been taken out for its length: it is summed up beside the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .journal import GroupRow, TrajectoryRow
    from .state import Group

__all__ = ["Tally", "judged", "taken_out"]


@dataclass(slots=True)
class Tally:
    """Sums over groups, or over trajectories that were taken out of some (then of no group)."""

    groups: int = 0
    landed: int = 0
    """Trajectories that were complete."""
    unfinished: int = 0
    """Trajectories that were sent and were not: how long they would have been is not known."""
    tokens: int = 0
    """Sampled tokens of those that were complete."""
    tries: int = 0
    """Rows that were judged."""
    passes: int = 0
    """Those of them that were right."""

    @classmethod
    def of(cls, group: Group, tries: int, passes: int) -> Tally:
        """Of what is left of one group, when it is trained or dropped."""
        landed = unfinished = tokens = 0
        for trajectory in group.trajectories:  # plain loops here and below: a batch may have tens of thousands
            if trajectory.state == "landed":
                landed += 1
                for span in trajectory.spans:
                    tokens += span.end - span.start
            elif trajectory.tries and trajectory.state != "dropped":
                unfinished += 1
        return cls(1, landed, unfinished, tokens, tries, passes)

    @classmethod
    def of_row(cls, row: GroupRow) -> Tally:
        """Of one group that is over, out of a ledger."""
        return cls(1, row.landed, row.unfinished, row.tokens, row.tries, row.passes)

    def add(self, other: Tally, times: int = 1) -> None:
        """times -1: it is taken back."""
        self.groups += times * other.groups
        self.landed += times * other.landed
        self.unfinished += times * other.unfinished
        self.tokens += times * other.tokens
        self.tries += times * other.tries
        self.passes += times * other.passes

    @property
    def mean_tokens(self) -> float | None:
        """Sampled tokens a complete trajectory."""
        return self.tokens / self.landed if self.landed else None

    @property
    def pass_rate(self) -> float | None:
        return self.passes / self.tries if self.tries else None


def judged(group: Group) -> tuple[int, int]:
    """Tries and passes of what is left of a group, where it was judged before it boards; (0, 0): not judged yet.

    Where an operator judged the whole of it, they are of the whole: what a later filter took out is not told apart.
    """
    if group.judged[0]:
        return group.judged
    tries = passes = 0
    for trajectory in group.trajectories:
        if trajectory.state == "landed":
            tries += trajectory.judged[0]
            passes += trajectory.judged[1]
    return tries, passes


def taken_out(rows: Iterable[TrajectoryRow]) -> dict[str, Tally]:
    """Sums over the trajectories among these that filters took out of their groups, by filter."""
    found: dict[str, Tally] = {}
    for row in rows:
        if row.state == "dropped":
            tokens = sum([span.end - span.start for span in row.spans])
            found.setdefault(row.reason, Tally()).add(Tally(landed=1, tokens=tokens, tries=row.tries, passes=row.passes))
    return found
