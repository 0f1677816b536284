"""Dispatch: while in-flight < W, there is room on a fit engine, and a trajectory is queued or a group admissible: send.

Oldest group first (by tag, then uid), so that started groups complete. A group not yet drawn counts as published + L and has the highest
uid, so every queued trajectory goes before it.
"""

from __future__ import annotations

import heapq

from .accounts import filtered
from .admission import room
from .events import Dispatch
from .rollout import give_up
from .state import Engine, Group, State, Trajectory

__all__ = ["admissible", "dispatch"]


def dispatch(state: State) -> None:
    """Send what may be sent. Only engines that serve the published version take first requests."""
    while state.in_flight < state.watermark.value:
        if state.routing.best(state.fleet) is None:
            return
        trajectory = _oldest_queued(state) or _first_of_new_group(state)
        if trajectory is None:
            return
        engine = state.routing.best(state.fleet, near=state.engines.get(state.groups[trajectory.uid].engine))
        assert engine is not None
        _send(state, trajectory, engine)
    _note_starved(state)


def _note_starved(state: State) -> None:
    """The trainer idles, and only the watermark keeps an engine from more work."""
    if state.training is None and not state.batches and state.routing.best(state.fleet) is not None:
        state.watermark.starved |= bool(state.queued) or (not state.source_exhausted and admissible(state) > 0)


def _oldest_queued(state: State) -> Trajectory | None:
    while state.queued:
        _, uid, traj_uid = heapq.heappop(state.queued)
        if group := state.groups.get(uid):
            return group.trajectories[traj_uid]
    return None


def _first_of_new_group(state: State) -> Trajectory | None:
    """Draw the next prompt and register its group with the published version as its tag, if a seat is left.

    Prompts that are filtered out are passed over, and accounted for as dropped.
    """
    while not state.source_exhausted and admissible(state) > 0:
        group = _draw(state)
        if why := filtered(state, group.uid):
            state.buffer.leave(group)
            give_up(state, group, "pass rate", why)
            continue
        for trajectory in group.trajectories[1:]:
            heapq.heappush(state.queued, (group.tag, group.uid, trajectory.traj_uid))
        return group.trajectories[0]
    return None


def admissible(state: State) -> int:
    """Groups that may be registered now."""
    config = state.config
    return room(
        waiting=state.waiting,
        published=state.published,
        next_batch=state.next_batch,
        last=config.last,
        groups_per_batch=config.groups_per_batch,
        max_lag=config.max_lag,
        oversample=config.oversample,
    )


def _draw(state: State) -> Group:
    """The smallest uid that is neither finished nor live."""
    if state.pending:
        uid = heapq.heappop(state.pending)
    else:
        uid = state.next_uid
        state.next_uid += 1
    group = Group(uid, state.published, [Trajectory(uid, traj_uid, state.attempt_floor) for traj_uid in range(state.config.n)])
    state.groups[uid] = group
    state.buffer.register(group)
    state.touch(group)
    return group


def _send(state: State, trajectory: Trajectory, engine: Engine) -> None:
    trajectory.state, trajectory.engine, trajectory.version_tag = "running", engine.name, state.published
    trajectory.tries += 1
    state.groups[trajectory.uid].engine = engine.name
    state.touch(trajectory)
    engine.running[trajectory.uid, trajectory.traj_uid] = trajectory
    state.in_flight += 1
    state.routing.offer(engine)
    state.emit(Dispatch(trajectory.id, engine.name, state.published))
    state.arm("trajectory", trajectory.id)
