"""A trainer died: its weights since the newest checkpoint died with it. Back to that checkpoint, in place.

TrainerDown, a train step or a start that hangs ──→ requests are aborted ──→ a new timeline at c ──→ StartWorkers(c) ──→ engines are synced
                                                └──→ too many without a new checkpoint: the run ends with the name of the trainer
"""

from __future__ import annotations

from .accounts import cover, undo
from .events import Abort, StartWorkers, TrainerDown, Void
from .fleet import forget_weights
from .journal import BatchRow, EvaluationRow
from .state import Group, State
from .timelines import Records, rewind

__all__ = ["roll_back", "start_workers", "trainer_down"]


def start_workers(state: State, after: float = 0.0) -> None:
    """All that are not engines, from the newest checkpoint."""
    state.workers_up = False
    state.workers_start += 1
    state.emit(StartWorkers(state.workers_start, state.checkpoint, after))
    state.arm("worker start", "", after=after)


def trainer_down(state: State, event: TrainerDown) -> bool:
    if not state.started or event.start != state.workers_start:
        return False
    roll_back(state, f"worker {event.worker} went down: {event.why}")
    return True


def roll_back(state: State, why: str) -> None:
    """To the newest checkpoint by the rules of a resume; up to the bound."""
    if state.trainer_deaths >= state.config.trainer_restarts and not state.stops:
        state.fail(_too_many(state, why))
        return
    delay = state.config.restart_delay * 2.0 ** min(state.trainer_deaths, 10)
    state.trainer_deaths += 1
    state.totals.rollbacks += 1
    _disarm_all(state)
    _abort_running(state)
    cover(state)
    _undo_totals(state)
    live, records = state.groups, _records(state)
    rewind(state, records, state.saved)
    _forget_rows(state, live)
    for engine in state.fleet:
        forget_weights(state, engine)
    if not state.stops:
        start_workers(state, delay)


def _too_many(state: State, why: str) -> str:
    checkpoint = f"of version {state.checkpoint}" if state.checkpoint is not None else "that the run began with"
    return (
        f"{why} (rolled back {state.trainer_deaths} times to the checkpoint {checkpoint}, "
        f"trainer_restarts={state.config.trainer_restarts}). Weights up to version {state.published} died with it"
    )


def _disarm_all(state: State) -> None:
    """Nothing is waited for any more but engines that start, or have no room."""
    for armed in [armed for armed in state.armed.values() if armed.kind not in ("engine start", "engine room")]:
        state.disarm(armed.kind, armed.subject, armed.operator)


def _undo_totals(state: State) -> None:
    """Counts of what will be done again or not at all."""
    for group in state.uncovered:
        undo(state, group)


def _records(state: State) -> Records:
    """All that the checkpoint does not cover."""
    under_way = [due for dues in state.evaluations.values() for due in dues]
    formed = [*state.uncovered_batches, *([state.training] if state.training else []), *state.batches]
    return Records(
        groups=[*state.groups.values(), *state.uncovered],
        batches=[BatchRow(batch.id.timeline, batch.id.batch, "trained", batch.groups) for batch in formed],
        evaluations=state.scored + [EvaluationRow(due, "due", state.timeline) for due in (*under_way, *state.evaluations_due)],
        hops=tuple(hop.operator for hop in state.config.hops),
        least_left=state.config.least_left,
    )


def _abort_running(state: State) -> None:
    """Every request of the timeline that ends."""
    for evaluation in state.evaluations:
        state.emit(Void(evaluation))
    for engine in state.fleet:
        for trajectory in engine.running.values():
            state.emit(Abort(trajectory.id))


def _forget_rows(state: State, live: dict[int, Group]) -> None:
    """Of trajectories that start again in groups that stay."""
    for uid in live.keys() & state.groups.keys():
        for before, now in zip(live[uid].trajectories, state.groups[uid].trajectories, strict=True):
            if before.state in ("landed", "dropped") and now.state == "queued":
                state.emit(Abort(before.id))
