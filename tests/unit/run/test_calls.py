"""An evaluation that nobody waits for any more is ended where it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipelines.grpo import grpo
from rlflow.errors import WaitTimeout
from rlflow.run.calls import Caller
from rlflow.run.graph import GraphView
from rlflow.run.messages import Abort, Call, Done


class Rollout:
    """A rollout process that never answers, or runs out of time."""

    def __init__(self, *, in_time: bool) -> None:
        self.in_time, self.sent = in_time, list[Any]()

    async def call(self, message: Call, *, what: str, timeout: float) -> Done:
        self.sent.append(message)
        if not self.in_time:
            raise WaitTimeout(f"{what} did not return")
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def send(self, message: Any) -> None:
        self.sent.append(message)


NODE = GraphView(grpo()).sinks[0]
CALL = Call(7, NODE.id)


def test_one_that_is_void_is_given_up() -> None:
    rollout = Rollout(in_time=True)

    async def void() -> None:
        caller = Caller({"engine.rollout": rollout}, {}, [])  # type: ignore[dict-item]
        task = asyncio.create_task(caller.evaluate(NODE, "engine", CALL, 60.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(void())
    assert rollout.sent == [CALL, Abort(7)]


def test_one_that_takes_too_long_is_given_up() -> None:
    rollout = Rollout(in_time=False)
    with pytest.raises(WaitTimeout):
        asyncio.run(Caller({"engine.rollout": rollout}, {}, []).evaluate(NODE, "engine", CALL, 60.0))  # type: ignore[dict-item]
    assert rollout.sent == [CALL, Abort(7)]
