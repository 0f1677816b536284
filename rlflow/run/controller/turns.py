"""Turns of a trajectory after its first: only to an engine that holds its weights or newer ones of the same timeline.

    running ──Turn(k)──→ its own engine is fit? another with room? ──→ Continue(k)
                                    neither ──→ waits, by name ──an engine is fit──→ Continue(k)

Fit: up, and the last probe found a version ≥ the tag. (What an engine is found to hold is of this timeline: a rollback forgets it.) The
engine that it ran on holds its history, and keeps its room for it between two turns. A turn is no Dispatch: the watermark does not hold it.
"""

from __future__ import annotations

from .events import Continue, Turn
from .rollout import live_trajectory
from .state import Engine, State, Trajectory

__all__ = ["ask_turns", "turn"]


def turn(state: State, event: Turn) -> bool:
    """The trajectory can go on with this turn; turn 0 was its Dispatch."""
    trajectory = live_trajectory(state, event.trajectory)
    if trajectory is None or trajectory.state != "running" or event.turn != trajectory.turn + 1:
        return False
    trajectory.turn = event.turn
    if _holds(state.engines[trajectory.engine], trajectory):
        state.emit(Continue(trajectory.id, trajectory.turn, trajectory.engine))
        return True
    state.turns[trajectory.uid, trajectory.traj_uid] = trajectory
    state.arm("turn", trajectory.id)
    return True


def ask_turns(state: State) -> None:
    """Ask for the turns that waited and that an engine is fit for now, the oldest first."""
    if all(engine.held is None for engine in state.fleet):
        return  # as in a sync of all of them, whatever else happens meanwhile
    for trajectory in sorted(state.turns.values(), key=lambda t: (state.groups[t.uid].tag, t.uid, t.traj_uid)):
        engine = _fit_engine(state, trajectory)
        if engine is not None:
            del state.turns[trajectory.uid, trajectory.traj_uid]
            state.disarm("turn", trajectory.id)
            _move(state, trajectory, engine)
            state.emit(Continue(trajectory.id, trajectory.turn, engine.name))


def _fit_engine(state: State, trajectory: Trajectory) -> Engine | None:
    """The one that it ran on, else of the others with room the one with the most."""
    own = state.engines[trajectory.engine]
    if _holds(own, trajectory):
        return own
    others = [engine for engine in state.fleet if _holds(engine, trajectory) and engine.capacity > len(engine.running)]
    return max(others, key=lambda engine: (engine.capacity - len(engine.running), -engine.index), default=None)


def _holds(engine: Engine, trajectory: Trajectory) -> bool:
    return engine.state != "down" and engine.held is not None and engine.held >= trajectory.version_tag


def _move(state: State, trajectory: Trajectory, engine: Engine) -> None:
    own = state.engines[trajectory.engine]
    if own is engine:
        return
    del own.running[trajectory.uid, trajectory.traj_uid]
    engine.running[trajectory.uid, trajectory.traj_uid] = trajectory
    trajectory.engine = engine.name
    state.touch(trajectory)
    state.routing.offer(own)
    state.routing.offer(engine)
