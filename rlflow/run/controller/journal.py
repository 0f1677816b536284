"""What a transition did to what outlives a crash: rows by key, in order. A ledger stores them without knowing a rule.

    decide(state, event) ──→ state.journal ──commit──→ ledger ──load──→ Books ──resume──→ State

GroupRow, TrajectoryRow, BatchRow, EvaluationRow, TimelineRow, SavedRow, PassRate, Counters    the newest word on their key
Pending, Finished                                                                              groups whose rows are deleted

A group has a row from its registration on, a trajectory from its first dispatch on. What a checkpoint of version c covers is a rule of
versions: groups trained or dropped with ``version`` ≤ c. ``covered`` and ``undone`` are last words: such a row may be forgotten.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .ids import Span

__all__ = [
    "BatchRow", "Change", "Counters", "EvaluationRow", "Finished", "GroupRow", "PassRate", "Pending", "SavedRow", "TimelineRow",
    "TrajectoryRow",
]  # fmt: skip


class GroupRow(msgspec.Struct, frozen=True, array_like=True, tag="group", gc=False):
    """Key: uid. batch: where it was consumed, else -1. version: published when it was trained or dropped, else -1.

    tries, passes: of a group that is over, what it counts for (``Tally``), like the sums before them; of a live one what an operator on the
    whole of it said.
    """

    uid: int
    tag: int
    state: Literal["running", "landed", "ready", "consumed", "trained", "dropped"]
    batch: int
    timeline: int
    hops_done: int
    version: int = -1
    reason: str = ""
    detail: str = ""
    landed: int = 0
    unfinished: int = 0
    tokens: int = 0
    tries: int = 0
    passes: int = 0


class TrajectoryRow(msgspec.Struct, frozen=True, array_like=True, tag="trajectory", gc=False):
    """Key: (uid, traj_uid). tries, passes: its rows that were judged, and those of them that were right.

    reason: the filter that dropped it, while its group goes on.
    """

    uid: int
    traj_uid: int
    attempt: int
    version_tag: int
    state: Literal["queued", "running", "landed", "dropped"]
    engine: str
    rows: int
    spans: tuple[Span, ...]
    hops_done: int
    tries: int = 0
    passes: int = 0
    reason: str = ""


class BatchRow(msgspec.Struct, frozen=True, array_like=True, tag="batch", gc=False):
    """Key: (timeline, batch). covered: a checkpoint holds it; undone: a rollback took it back."""

    timeline: int
    batch: int
    state: Literal["queued", "training", "trained", "covered", "undone"]
    groups: tuple[int, ...]


class EvaluationRow(msgspec.Struct, frozen=True, array_like=True, tag="evaluation", gc=False):
    """Key: due, the version at which it became due. version: what it was pinned to, else -1."""

    due: int
    state: Literal["due", "pinned", "scored", "covered", "undone"]
    timeline: int
    version: int = -1
    score: float | None = None


class TimelineRow(msgspec.Struct, frozen=True, array_like=True, tag="timeline", gc=False):
    """Key: timeline. version: of the checkpoint that it began at; then the schedule that it runs by.

    least_left: the fewest trajectories of a group that filters may leave; 0: all n are trained.
    """

    timeline: int
    version: int
    n: int
    groups_per_batch: int
    max_lag: int
    last: int
    hops: tuple[str, ...] = ()
    policy: str = "wait"
    least_left: int = 0


class SavedRow(msgspec.Struct, frozen=True, array_like=True, tag="saved", gc=False):
    """Key: (timeline, version). A durable checkpoint; only the newest one is resumed from."""

    timeline: int
    version: int


class Pending(msgspec.Struct, frozen=True, array_like=True, tag="pending", gc=False):
    """These groups are as if never drawn (to be sampled again, not dropped): their rows and trajectories are deleted."""

    uids: tuple[int, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished", gc=False):
    """A checkpoint covers these groups, trained or dropped: their rows and trajectories are deleted, the uids stay as finished ones."""

    uids: tuple[int, ...]


class PassRate(msgspec.Struct, frozen=True, array_like=True, tag="pass_rate", gc=False):
    """Key: (row of the data, version). version: published when it was told. tries 0: it is forgotten."""

    row: int
    tries: int
    passes: int
    version: int


class Counters(msgspec.Struct, frozen=True, array_like=True, tag="counters", gc=False):
    """One row: numbers that a resume goes on from."""

    first_uid: int
    attempt_floor: int
    """New trajectories of this timeline start at this attempt."""
    highest_attempt: int
    """No attempt of any timeline was higher."""
    evaluated: int
    """Newest version that was scored."""
    source_end: int = -1
    """Uids below this number exist; -1: the source has not ended."""
    drawn: int = 0
    """Uids below this number were drawn on a timeline before this one."""


Change = GroupRow | TrajectoryRow | BatchRow | EvaluationRow | TimelineRow | SavedRow | Pending | Finished | PassRate | Counters
