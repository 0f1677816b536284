"""Short words for cases on the pure core: a world of one engine, what is landed, what was sent, what boards."""

from __future__ import annotations

import random

from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.schedule import Config

ONE = Config(n=1, groups_per_batch=1, max_lag=0, last=9, engines=("e",))


def land(world: World, *uids: int) -> list[ev.AnyAction]:
    """Land what runs of these groups, in this order; what the last landing made possible."""
    actions: list[ev.AnyAction] = []
    for uid in uids:
        for trajectory in [trajectory for trajectory in world.running() if trajectory.uid == uid]:
            actions = world.land(trajectory)
    return actions


def sent(actions: list[ev.AnyAction]) -> list[str]:
    """Dispatched trajectories, ``uid.traj_uid.attempt``."""
    return [str(action.trajectory) for action in actions if isinstance(action, ev.Dispatch)]


def dropped(actions: list[ev.AnyAction]) -> list[tuple[int, str]]:
    return [(action.group.uid, action.reason) for action in actions if isinstance(action, ev.Drop)]


def boarded(world: World) -> tuple[int, ...]:
    """The batch in training."""
    return world.training.groups if world.training else ()


def answer_first(world: World) -> None:
    """The first of all that is awaited succeeds."""
    world.answer(world.outstanding()[0], random.Random(0))
