"""Arguments in places where they mean nothing: weights for a field, a field for a record, a name for weights.

What a parameter takes is in its type; a type checker sees these mistakes, the run time would meet them in a worker's process.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_origin

from .feedback import READINGS, Feedback
from .loss import Objective
from .record import Record
from .trace import WeightsValue


def wanted(hint: Any) -> str | None:
    """What a parameter takes, in words; None for configuration. (Of fields the spec tells.)"""
    origin = get_origin(hint) or hint
    if origin in READINGS:
        return "weights" if READINGS[origin] == "any" else f"weights as {READINGS[origin]}"
    if origin is Objective:
        return "an objective"
    bound = hint.__bound__ if isinstance(hint, TypeVar) else hint
    return "a record" if isinstance(bound, type) and issubclass(bound, Record) else None


def weights_elsewhere(hints: dict[str, Any], given: dict[str, Any]) -> tuple[str, str] | None:
    """A parameter that takes weights and was given none, and the one that was given them: the arguments are in another order."""
    takes = [name for name in given if (get_origin(hints.get(name)) or hints.get(name)) in READINGS]
    holds = [name for name, value in given.items() if isinstance(value, WeightsValue | Feedback)]
    return (takes[0], holds[0]) if takes and holds and not set(takes) & set(holds) else None
