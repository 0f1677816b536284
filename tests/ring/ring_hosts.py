"""What the world of the ring is made of beside the accounts: its engines, and a picture of the core to compare by."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.state import State

__all__ = ["Host", "Room", "picture"]


@dataclass
class Host:
    """An engine as it really is."""

    start: int = 0
    up: bool = False
    capacity: int = 0
    held: tuple[int, int] | None = None
    """(timeline, version) of its weights; None: nobody knows."""
    running: dict[TrajectoryId, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Room:
    """An engine that takes nothing may take something again."""

    engine: str


def picture(state: State) -> str:
    """Everything that the state holds but the count of ignored events and what belongs to the transition."""
    passing = ("actions", "journal", "totals", "buffer", "routing", "touched")
    parts = [{name: value for name, value in vars(state).items() if name not in passing}, vars(state.buffer)]
    totals = {name: getattr(state.totals, name) for name in state.totals.__slots__ if name != "ignored"}
    return repr([*parts, totals])
