"""The learning rate as a function of the optimizer step: no state besides the step."""

from __future__ import annotations

import math
from typing import Literal

from rlflow.errors import EngineError

__all__ = ["Schedule", "learning_rate"]

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, *, lr: float, warmup_steps: int, schedule: Schedule, decay_steps: int) -> float:
    """Rate of the step-th optimizer step, counted from 0.

    Warm-up: lr * (step + 1) / warmup_steps, so that the first step already moves. Then constant, or down to 0 over `decay_steps`
    more steps, linearly or by half a cosine; 0 after that.

        warmup_steps=2, schedule="linear", decay_steps=4, lr=1:   0.5 1.0 | 1.0 0.75 0.5 0.25 | 0 ...
    """
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule == "constant":
        return lr
    if decay_steps <= 0:
        raise EngineError(f"schedule={schedule!r} needs decay_steps > 0 (the steps over which it goes to 0), got {decay_steps}")
    done = min((step - warmup_steps) / decay_steps, 1.0)
    return lr * (1 - done) if schedule == "linear" else lr * (1 + math.cos(math.pi * done)) / 2
