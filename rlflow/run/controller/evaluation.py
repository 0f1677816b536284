"""Evaluation: a held-out set at one pinned version, outside admission, the watermark and the accounts of training.

    due(v) ──first engine that holds a version ≥ v──→ pinned to (timeline, version, engine) ──→ scored ──→ covered by a checkpoint
                                                        └── engine down, failed: void, due again

The pinned engine is not synced before the evaluation is over; the others go on. A run does not finish before it. A rollback to version c
voids what is unfinished or pinned above c.
"""

from __future__ import annotations

from .events import Evaluate, Evaluated, EvaluationFailed, Void
from .ids import EvaluationId
from .state import Engine, State

__all__ = ["cover_scored", "evaluated", "evaluation_failed", "evaluation_lost", "make_due", "pin", "void"]


def make_due(state: State, *versions: int) -> None:
    """Each version is to be evaluated, or a newer one if no engine gets it any more: all are due before an engine is pinned."""
    new = [version for version in versions if version not in state.evaluations_due]
    for version in new:
        state.evaluations_due.append(version)
        state.journal_evaluation(version, "due")
    for engine in state.fleet if new else ():
        pin(state, engine)


def pin(state: State, engine: Engine) -> None:
    """Evaluate on this engine what it holds, if that is due; dues that it passed over are served by the same one."""
    if not state.evaluations_due or engine.held is None or engine.evaluation is not None or state.stops:
        return
    served = tuple(version for version in state.evaluations_due if version <= engine.held)
    if not served:
        return
    for version in served:
        state.evaluations_due.remove(version)
        state.journal_evaluation(version, "pinned", engine.held)
    state.evaluation_attempts += 1
    engine.evaluation = EvaluationId(state.timeline, engine.held, engine.name, state.evaluation_attempts)
    state.evaluations[engine.evaluation] = served
    state.evaluated = max(state.evaluated, engine.held)
    state.unsynced.pop(engine.name, None)
    state.emit(Evaluate(engine.evaluation))
    state.arm("evaluation", engine.evaluation)


def evaluated(state: State, event: Evaluated) -> bool:
    engine = _pinned(state, event.evaluation)
    if engine is None:
        return False
    state.evaluation_failures = 0
    version = event.evaluation.version
    for due in _release(state, engine):
        state.scored.append(state.journal_evaluation(due, "scored", version, event.score))
    cover_scored(state)
    pin(state, engine)
    return True


def evaluation_failed(state: State, event: EvaluationFailed) -> bool:
    engine = _pinned(state, event.evaluation)
    if engine is None:
        return False
    evaluation_lost(state, engine, event.why)
    return True


def evaluation_lost(state: State, engine: Engine, why: str) -> None:
    """Once more, up to the bound."""
    assert engine.evaluation is not None
    version = engine.evaluation.version
    state.evaluation_failures += 1
    void(state, engine)
    if state.evaluation_failures >= state.config.max_attempts:
        state.fail(f"version {version} could not be evaluated in {state.evaluation_failures} attempts, the last one: {why}")


def void(state: State, engine: Engine) -> None:
    """The scores of this engine will not come: what they were for is due again, on another engine or as a newer version."""
    if engine.evaluation is not None:
        state.emit(Void(engine.evaluation))
        dues = _release(state, engine)
        make_due(state, *dues)
        pin(state, engine)


def cover_scored(state: State) -> None:
    """Scores of versions up to the newest checkpoint stay, whatever happens."""
    for row in [row for row in state.scored if row.version <= state.saved]:
        state.scored.remove(row)
        state.journal_evaluation(row.due, "covered", row.version, row.score)
        if row.version > state.covered_evaluation:
            state.covered_evaluation = row.version
            state.journal_counters()


def _release(state: State, engine: Engine) -> tuple[int, ...]:
    """The evaluation of this engine is over, and it may be synced again; the versions that were due by it."""
    evaluation = engine.evaluation
    assert evaluation is not None
    state.disarm("evaluation", evaluation)
    engine.evaluation = None
    if engine.state == "stale":
        state.unsynced[engine.name] = None
    return state.evaluations.pop(evaluation)


def _pinned(state: State, evaluation: EvaluationId) -> Engine | None:
    engine = state.engines.get(evaluation.engine)
    return engine if engine is not None and engine.evaluation == evaluation else None
