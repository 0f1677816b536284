"""The engine thread with a core that never gets idle, or that breaks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from rollout_requests import request

from rlflow.engines.rollout.embedded.engine import Engine
from rlflow.errors import EngineError


class AlwaysBusy:
    """The part of EngineCore that the thread uses: one row that never ends."""

    def __init__(self) -> None:
        self.busy, self.runnable, self.paused, self.draining = True, True, None, 0
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        time.sleep(0.001)

    def abort_everything(self, message: str) -> None:
        self.busy = self.runnable = False


def with_engine(core: Any, use: Any) -> Any:
    async def main() -> Any:
        fatal: list[str] = []
        engine = Engine(core, asyncio.get_running_loop(), fatal.append)
        engine.start()
        try:
            return await asyncio.wait_for(use(engine, fatal), 10)
        finally:
            engine.stop()

    return asyncio.run(main())


def test_waiting_for_idleness_gives_up_and_admits_again() -> None:
    core = AlwaysBusy()

    async def use(engine: Engine, fatal: list[str]) -> None:
        with pytest.raises(EngineError, match=r"weight update: requests were still running after 0\.05 s; pause_generation first"):
            await engine.call_idle(lambda core: None, timeout=0.05, doing="weight update")

    with_engine(core, use)
    assert core.steps > 10  # stepped on meanwhile
    assert core.draining == 0


def test_waiting_ends_when_the_rows_have_ended() -> None:
    core = AlwaysBusy()

    async def use(engine: Engine, fatal: list[str]) -> str:
        waiting = asyncio.create_task(engine.call_idle(lambda core: "ran", timeout=5, doing="x"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await engine.call(lambda core: core.abort_everything(""))
        return await waiting

    assert with_engine(core, use) == "ran"


def test_a_call_raises_what_the_core_refuses_and_the_engine_lives() -> None:
    def refuse(core: Any) -> None:
        raise EngineError("no")

    async def use(engine: Engine, fatal: list[str]) -> int:
        with pytest.raises(EngineError, match="no"):
            await engine.call(refuse)
        return await engine.call(lambda core: 7)

    assert with_engine(AlwaysBusy(), use) == 7


def test_a_broken_step_fails_all_requests_and_reports() -> None:
    class Broken(AlwaysBusy):
        def __init__(self) -> None:
            super().__init__()
            self.batch = self.queue = self
            self.delivered: list[Any] = []
            waiting = request("a")
            waiting.deliver = self.delivered.append
            self.requests, self.waiting, self.held = [], [waiting], []

        def step(self) -> None:
            raise ZeroDivisionError("boom")

    core = Broken()

    async def use(engine: Engine, fatal: list[str]) -> None:
        while not fatal:
            await asyncio.sleep(0.01)
        assert "boom" in fatal[0]

    with_engine(core, use)
    assert [(r.finish.type, r.finish.status_code) for r in core.delivered] == [("abort", 500)]
