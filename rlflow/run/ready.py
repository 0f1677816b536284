"""The ready buffer: where the rows of live trajectories lie, and what operators of whole groups made of them, until their last read.

land ──▶ of(group) ──▶ trained or dropped: forget ──▶ keys to free
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..data.pool.protocol import Key
from .controller.ids import TrajectoryId


@dataclass(frozen=True)
class Landed:
    """A trajectory in the ready buffer: the block of its leaf rows, tokens of each, and what was measured on it."""

    uid: int
    key: Key
    lengths: tuple[int, ...]
    metrics: dict[str, float]


@dataclass(frozen=True)
class OfGroup:
    """What an operator made of a whole group. rows: of its block; left: those of trajectories that no later filter took out."""

    key: Key
    rows: int
    left: tuple[int, ...]

    @property
    def take(self) -> tuple[int, ...] | None:
        """As a call is told: None for all."""
        return None if len(self.left) == self.rows else self.left


class Ready:
    """Whatever is handed in here comes out of `forget` or `forget_groups` exactly once."""

    def __init__(self) -> None:
        self._landed: dict[int, dict[TrajectoryId, Landed]] = {}  # by uid
        self._made: dict[int, dict[int, Key]] = {}  # by uid, then by node

    def land(self, trajectory: TrajectoryId, landed: Landed) -> None:
        self._landed.setdefault(trajectory.uid, {})[trajectory] = landed

    def __contains__(self, trajectory: TrajectoryId) -> bool:
        return trajectory in self._landed.get(trajectory.uid, {})

    def __getitem__(self, trajectory: TrajectoryId) -> Landed:
        return self._landed[trajectory.uid][trajectory]

    @property
    def nbytes(self) -> int:
        """Of all blocks that are in here."""
        landed = (one.key for group in self._landed.values() for one in group.values())
        return sum(key.nbytes for keys in (landed, *(made.values() for made in self._made.values())) for key in keys)

    def group(self, uid: int) -> list[Landed]:
        """Its landed trajectories in the order of their numbers; none if the group is gone."""
        return [landed for _, landed in sorted(self._landed.get(uid, {}).items())]

    def put(self, uid: int, node: int, key: Key) -> None:
        """What an operator of the whole group made."""
        self._made.setdefault(uid, {})[node] = key

    def made(self, uid: int) -> dict[int, Key]:
        """Blocks of operators of the whole group, by node."""
        return self._made.get(uid, {})

    def forget(self, trajectory: TrajectoryId) -> list[Key]:
        """One trajectory is given up; its group goes on. Returns the key that nobody reads any more, if it has landed."""
        gone = self._landed.get(trajectory.uid, {}).pop(trajectory, None)
        return [gone.key] if gone else []

    def forget_made(self, uid: int) -> list[Key]:
        """What operators made of the whole group counts no more. Returns the keys of it."""
        return list(self._made.pop(uid, {}).values())

    def forget_groups(self, uids: Iterable[int]) -> list[Key]:
        """The groups are trained or dropped. Returns all their keys."""
        keys: list[Key] = []
        for uid in uids:
            keys += [landed.key for landed in self._landed.pop(uid, {}).values()]
            keys += self._made.pop(uid, {}).values()
        return keys
