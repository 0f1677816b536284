"""Who waits for whom, when nothing has happened for long."""

from __future__ import annotations

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.state import Config, State
from rlflow.run.stall import Outstanding, Waits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started() -> State:
    state = State(Config(n=2, groups_per_batch=1, max_lag=0, last=3, engines=("engine",)))
    decide(state, ev.RunStarted())
    return state


def test_nothing_is_said_while_things_happen() -> None:
    clock = Clock()
    waits, state = Waits(60.0, clock), started()
    clock.now = 150.0
    waits.heard()
    clock.now = 200.0
    assert waits.stalled(state, []) is None
    assert waits.seconds_left() == 10.0


def test_a_stall_names_every_wait_and_every_call_and_since_when() -> None:
    clock = Clock()
    waits, state = Waits(60.0, clock), started()
    for name in ("worker start", "engine start engine", "train step 0:9"):
        waits.begin(name)
    waits.end("train step 0:9")
    clock.now = 170.0
    assert waits.stalled(state, [Outstanding("`judge`", "host", 110.0)]) == (
        "nothing has happened for 70 s; at version 0, 0 trajectories in flight\n"
        "  worker start waits 70 s for WorkersUp\n"
        "  engine start engine waits 70 s for EngineUp\n"
        "  host has not answered `judge` for 60 s"
    )


def test_it_is_said_again_after_as_long() -> None:
    clock = Clock()
    waits, state = Waits(60.0, clock), started()
    said = []
    for now in (159.0, 160.0, 161.0, 219.0, 221.0):
        clock.now = now
        said.append(waits.stalled(state, []) is not None)
    assert said == [False, True, False, False, True]
