"""Trajectories that are given up, or whose engine is gone, before anything was sent for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlflow.errors import EngineError
from rlflow.run.blocks import Blocks
from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.state import Config, State
from rlflow.run.sampling import Sampling

FIRST = ev.Dispatch(TrajectoryId(4, 1, 0), "engine", 0)


class Caller:
    """The rollout process is never to hear of it."""

    async def rollout(self, *_: Any) -> Any:
        pytest.fail("a call was sent")

    def rollout_process(self, engine: str) -> Any:
        pytest.fail("nothing runs there that could be aborted")


class Staff:
    def __init__(self, *, ended: bool) -> None:
        self.caller, self.rows, self.ended = Caller(), {0: 3}, ended
        self.view = SimpleNamespace(sampler=SimpleNamespace(id=1), source=SimpleNamespace(id=0))

    def engine_call(self, *_: Any, **__: Any) -> Any:
        raise EngineError("engine `engine` is down")

    async def engine_ended(self, name: str, within: float) -> bool:
        return self.ended


def told(folder: Path, *, aborted: bool, ended: bool) -> list[ev.AnyEvent]:
    """What is told of a trajectory whose engine went down between its Dispatch and its job."""
    events: list[ev.AnyEvent] = []
    staff: Any = Staff(ended=ended)
    state = State(Config(n=2, groups_per_batch=1, max_lag=0, last=0, engines=("engine",)))
    sampling = Sampling(state, staff, Blocks(lambda _: None), events.append, seed=0, rows=folder)

    async def one() -> None:
        job = sampling.dispatch(FIRST)
        if aborted:
            sampling.abort(FIRST.trajectory)
        await asyncio.wait_for(job, 5)

    asyncio.run(one())
    sampling.abort(FIRST.trajectory)  # nothing is left of it that could be aborted
    return events


def test_what_is_aborted_before_it_began_sends_nothing(tmp_path: Path) -> None:
    assert told(tmp_path, aborted=True, ended=False) == []


def test_the_end_of_an_engine_is_no_failure_of_a_trajectory_that_was_about_to_be_sent(tmp_path: Path) -> None:
    assert told(tmp_path, aborted=False, ended=True) == []


def test_an_engine_that_cannot_be_called_fails_the_attempt(tmp_path: Path) -> None:
    assert told(tmp_path, aborted=False, ended=False) == [ev.Failed(FIRST.trajectory, "engine `engine` is down")]
