"""What happens when a wait runs out: the column ``then`` of the table in ``waits``.

retry        the attempt counts as failed: another one, up to its bound
drop group   the unit got no verdict: its group is dropped with the operator's name
engine down  it did not come up: as if it had died
finish       the run ends and names the wait
"""

from __future__ import annotations

from .events import Timeout
from .fleet import engine_lost, sync_lost
from .ids import GroupId, SyncId, TrajectoryId
from .rollout import abort, live_trajectory, reject
from .state import State
from .waits import WAITS, Armed

__all__ = ["timeout"]


def timeout(state: State, event: Timeout) -> bool:
    armed = state.armed.pop(event.name, None)
    if armed is None:
        return False
    wait = WAITS[armed.kind]
    why = f"timeout: {event.name} waited {state.config.seconds(armed.kind):g} s for {wait.waits_for}"
    if wait.then == "finish":
        state.fail(why)
    else:
        _recover(state, armed, why)
    return True


def _recover(state: State, armed: Armed, why: str) -> None:
    subject = armed.subject
    if armed.kind == "operator":
        assert isinstance(subject, TrajectoryId | GroupId)
        reject(state, armed.operator, subject, why)
    elif isinstance(subject, SyncId):
        sync_lost(state, state.engines[subject.engine], why)
    elif isinstance(subject, TrajectoryId):
        trajectory = live_trajectory(state, subject)
        assert trajectory is not None
        abort(state, trajectory, why)
    else:
        engine_lost(state, state.engines[str(subject)], why)
