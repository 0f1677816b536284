"""Every order of events on a small ring: a walk over all states that can be reached, each visited once.

The world answers what is awaited, in every order; besides, the second seat of an engine appears at any one moment. In a state that is not
the end something must be possible, and all that is awaited must have a timer: that is what ``World.check`` asserts on the way.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass, field

from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.schedule import Config


class Gate(World):
    """Engines come up with room for one; `rooms`: those on which more has yet to appear."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rooms = set(config.engines)
        self.feed(ev.RunStarted())

    def choices(self) -> list[object]:
        waits = self.outstanding()
        return waits + [ev.Free(name, 2) for name in sorted(self.rooms) if self.hosts[name].up]

    def choose(self, choice: object) -> None:
        if isinstance(choice, ev.Free):
            self.rooms.discard(choice.engine)
            self.hosts[choice.engine].capacity = 2
            self.feed(choice)
        elif isinstance(choice, str) and choice in self.starts:
            self.engine_up(choice, 1)
        else:
            self.answer(choice, random.Random(0))

    def picture(self) -> str:
        """Equal for two worlds that cannot be told apart from here on."""
        hidden = {"state", "history", "timers"}
        state = {
            name: value for name, value in vars(self.state).items() if name not in ("actions", "journal", "totals", "buffer", "routing")
        }
        parts = {name: value for name, value in vars(self).items() if name not in hidden} | state
        buffer, routing = vars(self.state.buffer), vars(self.state.routing)
        return repr([_ordered(part) for part in (parts, buffer, routing)])


@dataclass
class Explored:
    states: int = 0
    ends: set[tuple[str, str]] = field(default_factory=set)


def explore(start: Gate, at_most: int = 50_000) -> Explored:
    """Breadth first. Raises AssertionError in a state without a way on, or past the number of states."""
    found, seen, open_states = Explored(), {start.picture()}, deque([start])
    while open_states:
        world = open_states.popleft()
        found.states += 1
        assert found.states <= at_most
        if world.finish is not None:
            found.ends.add((world.finish.outcome, world.finish.why))
            continue
        choices = world.choices()
        assert choices, f"nothing can happen any more: {sorted(world.state.armed)}"
        for index in range(len(choices)):
            after = copy.deepcopy(world)
            after.history.clear()
            after.choose(after.choices()[index])
            if (picture := after.picture()) not in seen:
                seen.add(picture)
                open_states.append(after)
    return found


def _ordered(value: object) -> object:
    """Sets and dicts in one order, whatever the order of their making."""
    if isinstance(value, dict):
        return sorted((repr(key), repr(_ordered(item))) for key, item in value.items())
    if isinstance(value, set):
        return sorted(map(repr, value))
    return value
