"""The heart of the run time and of the rehearsal: ``decide(state, event) -> actions``, a deterministic function.

      Landed, Failed, Ran ──→ rollout ─┐
      EngineUp, Synced … ───→ fleet    ├──→ what changed ──→ settle: sync → board → train → evaluate → dispatch → end
      Trained, Saved … ─────→ training ┘

A handler books what happened; ``settle`` then does all that has become possible. Nothing hangs on an edge: every rule reads levels, so no
wake-up can be lost. A handler returns False for an event that is not about the current timeline, attempt or start: it changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events
from .accounts import cover
from .boarding import board, drop_remainder
from .dispatch import dispatch
from .evaluation import evaluated, evaluation_failed, make_due
from .events import AnyAction, AnyEvent, RunStarted, SourceEnd, Stop, Timeout, WorkersUp
from .fleet import engine_down, engine_up, free, start, sync, sync_failed, synced
from .rollback import start_workers, trainer_down
from .rollout import failed, landed, ran, run_hops
from .state import State
from .timeouts import timeout
from .training import conclude, end, group_failed, has_nothing_to_train, save_failed, saved, train_failed, trained
from .turns import ask_turns, turn

__all__ = ["decide"]


def decide(state: State, event: AnyEvent) -> list[AnyAction]:
    """What to do now that this has happened, in order. After ``Finish`` it returns nothing.

    Changes ``state``; ``state.journal`` then holds what is to be durable before the actions are performed.
    """
    if state.finished:
        state.journal = []
        return []
    state.actions, state.journal = [], []
    if HANDLERS[type(event)](state, event):
        settle(state)
    else:
        state.totals.ignored[type(event).__name__] += 1
    state.write_journal()
    return state.actions


def settle(state: State) -> None:
    """Do all that is possible. Syncs stand before the train step that changes what they hand out."""
    if not state.failure:
        drop_remainder(state)
        if has_nothing_to_train(state):
            conclude(state)
        if not has_nothing_to_train(state) or state.evaluations_due:
            sync(state)
        if state.workers_up:
            board(state)
        if state.turns:
            ask_turns(state)
        if not state.stops:
            dispatch(state)
    finish = end(state)
    cover(state, None if finish else state.config.covered_at_once)
    state.recycle()
    if finish is not None:
        state.finished = True
        state.armed.clear()
        state.emit(finish)


def run_started(state: State, event: RunStarted) -> bool:
    if state.started:
        return False
    state.started = True
    for engine in state.fleet:
        start(state, engine)
    if not state.is_resumed:
        state.journal_timeline()
        if state.config.eval_every and state.published % state.config.eval_every == 0:
            make_due(state, state.published)
    start_workers(state)
    return True


def workers_up(state: State, event: WorkersUp) -> bool:
    if state.workers_up or not state.started or event.start != state.workers_start:
        return False
    state.workers_up = True
    state.disarm("worker start", "")
    run_hops(state)
    return True


def source_end(state: State, event: SourceEnd) -> bool:
    state.source_end = max(state.source_end, state.next_uid, state.drawn)
    state.journal_counters()
    return True


def stop(state: State, event: Stop) -> bool:
    state.stops += 1
    return True


HANDLERS: dict[type[Any], Callable[[State, Any], bool]] = {
    RunStarted: run_started,
    WorkersUp: workers_up,
    events.EngineUp: engine_up,
    events.EngineDown: engine_down,
    events.Free: free,
    events.Landed: landed,
    events.Failed: failed,
    events.Turn: turn,
    events.Ran: ran,
    events.Trained: trained,
    events.TrainFailed: train_failed,
    events.GroupFailed: group_failed,
    events.TrainerDown: trainer_down,
    events.Synced: synced,
    events.SyncFailed: sync_failed,
    events.Evaluated: evaluated,
    events.EvaluationFailed: evaluation_failed,
    events.Saved: saved,
    events.SaveFailed: save_failed,
    Timeout: timeout,
    SourceEnd: source_end,
    Stop: stop,
}
