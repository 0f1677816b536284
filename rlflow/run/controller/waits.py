"""Everything the controller waits for, in one table: no wait without a name, a timeout, and a word on what happens then.

Arm(name, seconds) ──→ Disarm(name)     it came
                  └──→ Timeout(name)    it did not: `then`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .ids import EvaluationId, SyncId, TrajectoryId, Unit

__all__ = ["WAITS", "Armed", "Subject", "Then", "Wait", "WaitKind", "wait_name"]

WaitKind = Literal[
    "worker start", "engine start", "engine room", "trajectory", "turn", "operator", "train step", "sync", "evaluation", "save"
]  # fmt: skip
Then = Literal["retry", "drop group", "engine down", "rollback"]
Subject = Unit | SyncId | EvaluationId | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    waits_for: str
    seconds: float
    then: Then


WAITS: dict[WaitKind, Wait] = {
    "worker start": Wait(waits_for="WorkersUp", seconds=300.0, then="rollback"),
    "engine start": Wait(waits_for="EngineUp", seconds=300.0, then="engine down"),
    "engine room": Wait(waits_for="Free with room for a trajectory", seconds=900.0, then="engine down"),
    "trajectory": Wait(waits_for="Landed or Failed", seconds=1800.0, then="retry"),
    "turn": Wait(waits_for="an engine that holds its version or a newer one", seconds=900.0, then="retry"),
    "operator": Wait(waits_for="Ran", seconds=600.0, then="drop group"),
    "train step": Wait(waits_for="Trained", seconds=3600.0, then="rollback"),
    "sync": Wait(waits_for="Synced or SyncFailed", seconds=600.0, then="retry"),
    "evaluation": Wait(waits_for="Evaluated or EvaluationFailed", seconds=3600.0, then="retry"),
    "save": Wait(waits_for="Saved or SaveFailed", seconds=1800.0, then="retry"),
}
"""State waited for -> its default timeout in seconds and what happens then. The reward is an operator before boarding."""


@dataclass(frozen=True, slots=True)
class Armed:
    """A timer that runs: what kind of wait it is, and about what."""

    kind: WaitKind
    subject: Subject
    operator: str = ""


def wait_name(kind: WaitKind, subject: Subject, operator: str = "") -> str:
    """The name of a wait, as it is told to the user: ``trajectory 17.2.0``, ``operator reward of trajectory 17.2.0``."""
    if kind == "operator":
        scope = "trajectory" if isinstance(subject, TrajectoryId) else "group"
        return f"operator {operator} of {scope} {subject}"
    return f"{kind} {subject}" if subject != "" else kind
