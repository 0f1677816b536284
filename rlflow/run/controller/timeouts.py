"""What happens when a wait runs out: the column ``then`` of the table in ``waits``.

retry        the attempt counts as failed: another one, up to its bound
drop group   the unit got no verdict: its group is dropped with the operator's name
engine down  it did not come up, or takes nothing: as if it had died
rollback     a trainer hangs: as if it had died
"""

from __future__ import annotations

from collections.abc import Callable

from .evaluation import evaluation_lost
from .events import Timeout
from .fleet import engine_lost, sync_lost
from .ids import BatchId, EvaluationId, GroupId, SyncId, TrajectoryId
from .rollback import roll_back
from .rollout import abort, live_trajectory, reject
from .state import State
from .training import save_lost
from .waits import WAITS, Armed, WaitKind

__all__ = ["timeout"]


def timeout(state: State, event: Timeout) -> bool:
    armed = state.armed.pop(event.name, None)
    if armed is None:
        return False
    wait = WAITS[armed.kind]
    why = f"timeout: {event.name} waited {state.config.seconds(armed.kind):g} s for {wait.waits_for}"
    RECOVERIES[armed.kind](state, armed, why)
    return True


def _trajectory(state: State, armed: Armed, why: str) -> None:
    assert isinstance(armed.subject, TrajectoryId)
    trajectory = live_trajectory(state, armed.subject)
    assert trajectory is not None
    abort(state, trajectory, why)


def _operator(state: State, armed: Armed, why: str) -> None:
    assert isinstance(armed.subject, TrajectoryId | GroupId)
    reject(state, armed.operator, armed.subject, why)


def _engine(state: State, armed: Armed, why: str) -> None:
    engine_lost(state, state.engines[str(armed.subject)], why)


def _sync(state: State, armed: Armed, why: str) -> None:
    assert isinstance(armed.subject, SyncId)
    sync_lost(state, state.engines[armed.subject.engine], why)


def _evaluation(state: State, armed: Armed, why: str) -> None:
    assert isinstance(armed.subject, EvaluationId)
    evaluation_lost(state, state.engines[armed.subject.engine], why)


def _save(state: State, armed: Armed, why: str) -> None:
    assert isinstance(armed.subject, BatchId)
    save_lost(state, armed.subject, why)


def _workers(state: State, armed: Armed, why: str) -> None:
    roll_back(state, why)


RECOVERIES: dict[WaitKind, Callable[[State, Armed, str], None]] = {
    "worker start": _workers,
    "engine start": _engine,
    "engine room": _engine,
    "trajectory": _trajectory,
    "turn": _trajectory,
    "operator": _operator,
    "train step": _workers,
    "sync": _sync,
    "evaluation": _evaluation,
    "save": _save,
}
