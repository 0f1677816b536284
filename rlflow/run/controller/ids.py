"""The ids of what a run does. Equal ids mean equal things, so an action can be performed again and an old event be told from a new one.

trajectory  (uid, traj_uid, attempt)        attempts never repeat, across timelines too
group       (timeline, uid)                 one prompt of one epoch
batch, save (timeline, batch)               batch b is trained on version b and makes version b + 1
sync        (timeline, version, engine, attempt)
evaluation  (timeline, version, engine, attempt)
"""

from __future__ import annotations

import msgspec

__all__ = ["BatchId", "EvaluationId", "GroupId", "Span", "SyncId", "TrajectoryId", "Unit"]


class TrajectoryId(msgspec.Struct, frozen=True, order=True, tag="trajectory", gc=False):
    uid: int
    traj_uid: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.uid}.{self.traj_uid}.{self.attempt}"


class GroupId(msgspec.Struct, frozen=True, order=True, tag="group", gc=False):
    timeline: int
    uid: int

    def __str__(self) -> str:
        return f"{self.timeline}:{self.uid}"


class BatchId(msgspec.Struct, frozen=True, order=True, tag="batch", gc=False):
    timeline: int
    batch: int

    def __str__(self) -> str:
        return f"{self.timeline}:{self.batch}"


class SyncId(msgspec.Struct, frozen=True, order=True, gc=False):
    timeline: int
    version: int
    engine: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.timeline}:{self.version} to {self.engine} (attempt {self.attempt})"


class EvaluationId(msgspec.Struct, frozen=True, order=True, gc=False):
    timeline: int
    version: int
    engine: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.timeline}:{self.version} on {self.engine} (attempt {self.attempt})"


class Span(msgspec.Struct, frozen=True, gc=False):
    """Sampled tokens ``start <= t < end`` of a trajectory came from weights of ``version``."""

    version: int
    start: int
    end: int


Unit = TrajectoryId | GroupId | BatchId
"""What an operator before boarding runs on, and what is trained."""
