"""Trajectories that are given up, or whose engine is gone; their turns, which the engine that they began on or another one takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_ready import KEYS

from rlflow.errors import DataError, EngineError, WorkerDied
from rlflow.run.blocks import Blocks
from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.state import Config, State
from rlflow.run.messages import Call, Continue, Done
from rlflow.run.sampling import Sampling

FIRST = ev.Dispatch(TrajectoryId(4, 1, 0), "engine", 0)


class Caller:
    """The rollout process is never to hear of it."""

    async def rollout(self, *_: Any, **__: Any) -> Any:
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


def test_of_a_group_that_is_gone_nothing_is_made_up(tmp_path: Path) -> None:
    """It is trained or dropped, and its rows are not freed yet."""
    staff: Any = Staff(ended=False)
    staff.view.hops = ()
    state = State(Config(n=2, groups_per_batch=1, max_lag=0, last=0, engines=("engine",)))
    sampling = Sampling(state, staff, Blocks(lambda _: None), lambda _: None, seed=0, rows=tmp_path)
    sampling.ready.put(4, 1, KEYS[0])
    with pytest.raises(DataError, match="prompt 4 was dropped"):
        asyncio.run(sampling.of_group(4, [], 0))


# --- turns ----------------------------------------------------------------------------------------------------------------------------
class Turning:
    """The process beside engine `a`, and what was sent to it: it is ready for a turn, and ends when a second one was answered."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.answered = asyncio.Event()

    async def rollout(self, node: Any, engine: str, call: Call, timeout: float, turned: Callable[[int], None]) -> Done:
        turned(1)
        await asyncio.wait_for(self.answered.wait(), 5)
        raise WorkerDied(f"`{engine}.rollout` died")

    def rollout_process(self, engine: str) -> Any:
        def send(message: Any) -> None:
            self.sent.append((engine, message))
            self.answered.set()

        return SimpleNamespace(send=send)


class TwoEngines(Staff):
    """down: engines that have ended."""

    def __init__(self, *down: str) -> None:
        super().__init__(ended=False)
        self.caller, self.down = Turning(), down  # type: ignore[assignment]

    def engine_call(self, node: int, timeline: int, version: int, engine: str, **more: Any) -> Call:
        return Call(7, node, version, timeline=timeline, engine=0, address=f"http://{engine}", **more)

    def address(self, engine: str) -> str | None:
        return None if engine == "gone" else f"http://{engine}"

    async def engine_ended(self, name: str, within: float) -> bool:
        return name in self.down


def played(folder: Path, continued: str, *down: str) -> tuple[list[ev.AnyEvent], list[tuple[str, Any]]]:
    """What is told and sent of a trajectory that began on `a` and whose turn 1 goes on at `continued`, when the process beside `a` dies."""
    events, trajectory = list[ev.AnyEvent](), FIRST.trajectory
    staff: Any = TwoEngines(*down)
    state = State(Config(n=2, groups_per_batch=1, max_lag=0, last=0, engines=("a", "b")))
    sampling = Sampling(state, staff, Blocks(lambda _: None), events.append, seed=0, rows=folder)

    async def one() -> None:
        job = asyncio.ensure_future(sampling.dispatch(ev.Dispatch(trajectory, "a", 0)))
        while not events:
            await asyncio.sleep(0)
        sampling.go_on(ev.Continue(trajectory, 1, continued))
        staff.caller.answered.set()
        await asyncio.wait_for(job, 5)

    asyncio.run(one())
    sampling.go_on(ev.Continue(trajectory, 2, "a"))  # too late: it has ended
    return events, staff.caller.sent


def test_a_turn_is_told_and_its_answer_names_the_server_it_goes_on_at(tmp_path: Path) -> None:
    for engine in ("a", "b"):
        events, sent = played(tmp_path, engine, engine)
        assert events == [ev.Turn(FIRST.trajectory, 1)]
        assert sent == [("a", Continue(7, 1, f"http://{engine}"))]


def test_a_trajectory_whose_process_dies_while_it_has_its_turn_elsewhere_is_lost(tmp_path: Path) -> None:
    """The end of `a` was told, but the controller has it on `b`."""
    events, _ = played(tmp_path, "b", "a")
    assert events[1:] == [ev.Failed(FIRST.trajectory, "`a.rollout` died", lost=True)]


def test_a_turn_at_an_engine_that_has_gone_down_since_is_not_answered(tmp_path: Path) -> None:
    events, sent = played(tmp_path, "gone", "gone")
    assert (events, sent) == ([ev.Turn(FIRST.trajectory, 1)], [])
