"""Evaluation: a held-out set at one pinned version, outside admission, the watermark and the accounts of training.

    due(v) ──first engine that holds a version ≥ v──→ pinned to (timeline, version, engine) ──→ evaluated
                                                        └── engine down, failed: void, due again

The pinned engine is not synced before the evaluation is over; the others go on. A run does not finish before it.
"""

from __future__ import annotations

from .events import Evaluate, Evaluated, EvaluationFailed
from .ids import EvaluationId
from .state import Engine, State

__all__ = ["evaluated", "evaluation_failed", "make_due", "pin", "void"]


def make_due(state: State, version: int) -> None:
    """The version is to be evaluated, or a newer one if no engine gets it any more."""
    if version not in state.evaluations_due:
        state.evaluations_due.append(version)
        for engine in state.fleet:
            pin(state, engine)


def pin(state: State, engine: Engine) -> None:
    """Evaluate on this engine what it holds, if that is due; dues that it passed over are served by the same one."""
    if not state.evaluations_due or engine.held is None or engine.evaluation is not None or state.stops:
        return
    served = [version for version in state.evaluations_due if version <= engine.held]
    if not served:
        return
    for version in served:
        state.evaluations_due.remove(version)
    state.evaluation_attempts += 1
    engine.evaluation = EvaluationId(state.timeline, engine.held, engine.name, state.evaluation_attempts)
    state.evaluations[engine.evaluation] = None
    state.evaluated = max(state.evaluated, engine.held)
    state.unsynced.pop(engine.name, None)
    state.emit(Evaluate(engine.evaluation))
    state.arm("evaluation", engine.evaluation)


def evaluated(state: State, event: Evaluated) -> bool:
    engine = _pinned(state, event.evaluation)
    if engine is None:
        return False
    state.evaluation_failures = 0
    _release(state, engine)
    return True


def evaluation_failed(state: State, event: EvaluationFailed) -> bool:
    engine = _pinned(state, event.evaluation)
    if engine is None:
        return False
    version = event.evaluation.version
    state.evaluation_failures += 1
    _release(state, engine)
    make_due(state, version)
    if state.evaluation_failures >= state.config.max_attempts:
        state.fail(f"version {version} could not be evaluated in {state.evaluation_failures} attempts, the last one: {event.why}")
    return True


def void(state: State, engine: Engine) -> None:
    """The engine is gone, its scores are void: the version is due again, on another engine or as a newer one."""
    if engine.evaluation is not None:
        version = engine.evaluation.version
        _release(state, engine)
        make_due(state, version)


def _release(state: State, engine: Engine) -> None:
    evaluation = engine.evaluation
    assert evaluation is not None
    state.disarm("evaluation", evaluation)
    del state.evaluations[evaluation]
    engine.evaluation = None
    if engine.state == "stale":
        state.unsynced[engine.name] = None
    pin(state, engine)


def _pinned(state: State, evaluation: EvaluationId) -> Engine | None:
    engine = state.engines.get(evaluation.engine)
    return engine if engine is not None and engine.evaluation == evaluation else None
