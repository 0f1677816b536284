"""Fields that the plan does not compute, because the training forward yields them: what `Loss.from_forward` names.

rows of a micro-batch, without old_log_probs ── forward ──▶ LossRows: the rows, and old_log_probs = forward.log_probs, detached

Only the weights that make the first optimizer step are those that would have scored the batch, so there may be no second.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlflow.errors import EngineError

from .protocol import LossLike, ObjectiveLike

__all__ = ["lacking"]


def lacking(objective: ObjectiveLike, losses: Iterable[LossLike], *, updates: int) -> dict[str, str]:
    """Fields that the rows lack and the losses take from the forward, field → field of the forward.

    Raises EngineError where more than one optimizer step would be made: by the second one the weights have moved.
    """
    rows = next((micro for part in objective.parts for micro in part), None)
    allowed = {name: source for loss in losses for name, source in getattr(loss, "from_forward", {}).items()}
    found = {name: source for name, source in allowed.items() if rows is not None and not hasattr(rows, name)}
    steps = updates * len(objective.parts)
    if found and steps != 1:
        raise EngineError(
            f"the rows have no {' and '.join(found)}; only the forward of a single optimizer step can stand in, and there are {steps} "
            f"({updates} updates x {len(objective.parts)} mini-batches): score the rows before they are trained on"
        )
    return found
