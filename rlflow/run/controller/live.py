"""What a run holds while it lives: trajectories, groups, engines and batches, as ``decide`` sees them.

    group       pending → running → landed → ready → consumed → trained | dropped → covered
    trajectory  queued → running(engine) → landed | failed → queued (attempt + 1);  landed → dropped by a filter, its group goes on
    batch       queued → training → trained → covered (a durable checkpoint of version ≥ batch + 1 exists)
    engine      down → stale → syncing → serving | stale;  serving → stale (a newer version is published);  any → down

A pending group is a uid that is not drawn, a covered one is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from .ids import BatchId, EvaluationId, Span, SyncId, TrajectoryId
from .journal import BatchRow, GroupRow, TrajectoryRow
from .tally import Tally

__all__ = ["Batch", "Engine", "Group", "Trajectory"]


class Trajectory(msgspec.Struct, gc=False):
    uid: int
    traj_uid: int
    attempt: int
    tries: int = 0
    """Attempts sent so far: bounded, while ``attempt`` goes on counting across timelines."""
    losses: int = 0
    """Those of them whose engine went down: no fault of the trajectory, as a rule, so they have a bound of their own."""
    state: Literal["queued", "running", "landed", "dropped"] = "queued"
    engine: str = ""
    version_tag: int = -1
    """Published version when this attempt was registered."""
    spans: tuple[Span, ...] = ()
    rows: int = 0
    hops_done: int = 0
    turn: int = 0
    """That was asked for last; the Dispatch was turn 0."""
    judged: tuple[int, int] = (0, 0)
    """Tries and passes."""
    reason: str = ""
    """The filter that dropped it."""
    is_touched: bool = False
    """By the transition under way: it gets a row in the journal."""

    @property
    def id(self) -> TrajectoryId:
        return TrajectoryId(self.uid, self.traj_uid, self.attempt)

    def row(self) -> TrajectoryRow:
        return TrajectoryRow(
            self.uid, self.traj_uid, self.attempt, self.version_tag, self.state, self.engine, self.rows, self.spans, self.hops_done,
            *self.judged, self.reason,
        )  # fmt: skip


class Group(msgspec.Struct, gc=False):
    uid: int
    tag: int
    """Oldest version tag of its trajectories; its deadline is ``tag + max_lag``."""
    trajectories: list[Trajectory]
    state: Literal["running", "landed", "ready", "consumed", "trained", "dropped"] = "running"
    landed: int = 0
    scored: int = 0
    """Landed trajectories for which every operator per trajectory has returned."""
    hops_done: int = 0
    engine: str = ""
    """Where a trajectory of it was sent last: the prefix of the prompt is there."""
    batch: int = -1
    """Where it was consumed."""
    version: int = -1
    """Published when it was trained or dropped."""
    reason: str = ""
    detail: str = ""
    rows: int = 0
    """Stored leaf rows, once it is trained or dropped; 1 of a group without any, for it is kept too."""
    trained_rows: int = 0
    """Those that were trained: its filters may have left a part."""
    judged: tuple[int, int] = (0, 0)
    """Tries and passes: where an operator judges the whole group, and of all that was judged of it once it is trained or dropped."""
    tally: Tally | None = None
    """What it counts for, once it is trained or dropped."""
    taken_out: dict[str, Tally] | None = None
    """Then, by filter, what was taken out of it; None: nothing."""
    is_touched: bool = False

    @property
    def left(self) -> list[Trajectory]:
        """What its filters have left of it: all that is trained."""
        return [trajectory for trajectory in self.trajectories if trajectory.state != "dropped"]

    def row(self, timeline: int) -> GroupRow:
        sums = (self.tally.landed, self.tally.unfinished, self.tally.tokens) if self.tally else (0, 0, 0)
        return GroupRow(
            self.uid,
            self.tag,
            self.state,
            self.batch,
            timeline,
            self.hops_done,
            self.version,
            self.reason,
            self.detail,
            *sums,
            *self.judged,
        )


@dataclass(slots=True)
class Engine:
    name: str
    index: int
    state: Literal["down", "stale", "syncing", "serving"] = "down"
    start: int = 0
    """Incarnation: 0 before the first Start."""
    is_starting: bool = False
    capacity: int = 0
    restarts: int = 0
    """Since it last served for long."""
    since: int | None = None
    """The first version that it was found to hold since it came up."""
    held: int | None = None
    """Version that the last probe found; None: unknown."""
    running: dict[tuple[int, int], Trajectory] = field(default_factory=dict)
    sync: SyncId | None = None
    sync_attempts: int = 0
    sync_failures: int = 0
    evaluation: EvaluationId | None = None

    @property
    def offered_room(self) -> int:
        """Trajectories that may be sent now: only an engine that serves the published version takes first requests."""
        room = self.capacity - len(self.running)
        return room if room > 0 and self.state == "serving" else 0


@dataclass(frozen=True, slots=True)
class Batch:
    id: BatchId
    groups: tuple[int, ...]
    trajectories: tuple[TrajectoryId, ...]
    """Ordered (uid, traj_uid)."""
    rows: int
    staleness: dict[int, int]
    """Gap ``b - span.version`` -> sampled tokens in this batch; under the policy *mask* those above ``max_lag`` are not trained on."""

    def row(self, state: Literal["queued", "training", "trained", "covered", "undone"]) -> BatchRow:
        return BatchRow(self.id.timeline, self.id.batch, state, self.groups)
