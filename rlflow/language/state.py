"""State: what lives across steps. What is not declared cannot be kept.

class Torch(Worker):
    state = (State("weights", 4 * N), State("optimizer", 8 * N, trained=True), State("rng", 5056 * DP))

@operator(per="row", state=(State("position", 8, in_checkpoint=False),))
def dataset(...): ...

Bytes are of one copy, in letters of its owner: N parameters of its model, DP data-parallel ranks, others of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from .dims import Dim


@dataclass(frozen=True)
class State:
    """One thing that a worker or an operator keeps from step to step.

    in_checkpoint: a checkpoint holds it; False for what is made anew from the rest. trained: a worker has it only if it trains.
    """

    name: str
    bytes: Dim | int
    in_checkpoint: bool = True
    trained: bool = False
