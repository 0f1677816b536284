"""The engine thread: the only one that touches the core.

    event loop ──call(fn)──▶ inbox ──▶ fn(core) between two steps ──▶ result back to the awaiting coroutine
               ──submit───▶ inbox ──▶ core.submit
    core.step ──deliver──▶ finished ──one wake-up a step──▶ event loop resolves the requests' futures

If a step raises, the engine is broken: every waiting caller gets the error, and `on_fatal` ends the server.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from rlflow.engines.rollout.embedded.core import EngineCore
from rlflow.engines.rollout.embedded.request import Request
from rlflow.engines.rollout.protocol import FinishReason
from rlflow.errors import EngineError

__all__ = ["Engine"]

T = TypeVar("T")
Job = Callable[[], None]


class Engine:
    """Runs a core on its own thread; the public methods are for the event loop's thread."""

    def __init__(self, core: EngineCore, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[str], None]) -> None:
        self._core, self._loop, self._on_fatal = core, loop, on_fatal
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._answers: list[tuple[asyncio.Future[Any], Any]] = []
        self._when_idle: list[tuple[float, Job, Callable[[], None]]] = []  # (deadline, run, on timeout)
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Abort what is left and end the thread."""
        self._inbox.put(lambda: self._core.abort_everything("the engine is shutting down: aborted"))
        self._inbox.put(None)
        self._thread.join(timeout)

    def submit(self, request: Request) -> None:
        self._inbox.put(lambda: self._core.submit(request))

    def abort(self, rid: str) -> None:
        self._inbox.put(lambda: self._core.abort(rid))

    def answer(self, future: asyncio.Future[Any], value: Any) -> None:
        """Resolve a future of the event loop from the engine thread; sent in one batch after the step."""
        self._answers.append((future, value))

    async def call(self, fn: Callable[[EngineCore], T]) -> T:
        """Run `fn` on the core between two steps; raises what it raises."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._inbox.put(lambda: self._run(fn, future))
        return await future

    async def call_idle(self, fn: Callable[[EngineCore], T], *, timeout: float, doing: str) -> T:
        """Run `fn` when no row runs, admitting nothing meanwhile; at once if generation is paused.

        Raises EngineError if rows still run after `timeout` seconds.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        late = EngineError(f"{doing}: requests were still running after {timeout:g} s; pause_generation first, or wait longer")
        self._inbox.put(lambda: self._await_idle(fn, future, timeout, late))
        return await future

    # -- engine thread

    def _main(self) -> None:
        try:
            torch.set_grad_enabled(False)  # a setting of this thread
            while self._take_jobs():
                self._serve_idle_waiters()
                if self._core.runnable:
                    self._core.step()
                self._send_answers()
        except BaseException:
            self._fail(traceback.format_exc())

    def _take_jobs(self) -> bool:
        """Run the inbox's jobs; waits for one when there is nothing to step. False at the end."""
        block = not self._core.runnable and not self._idle_waiter_ready()
        while True:
            try:
                job = self._inbox.get(block=block, timeout=self._next_deadline() if block else None)
            except queue.Empty:
                return True
            if job is None:
                self._send_answers()
                return False
            job()
            block = False

    def _run(self, fn: Callable[[EngineCore], T], future: asyncio.Future[T]) -> None:
        try:
            self.answer(future, fn(self._core))
        except EngineError as error:
            self.answer(future, error)

    def _await_idle(self, fn: Callable[[EngineCore], T], future: asyncio.Future[T], timeout: float, late: EngineError) -> None:
        self._core.draining += 1
        self._when_idle.append((time.monotonic() + timeout, lambda: self._run(fn, future), lambda: self.answer(future, late)))

    def _idle_waiter_ready(self) -> bool:
        return bool(self._when_idle) and (not self._core.busy or self._core.paused is not None)

    def _next_deadline(self) -> float | None:
        """Seconds to the first deadline of those that wait for idleness; None to sleep until a job comes."""
        if not self._when_idle:
            return None
        return max(0.0, min(deadline for deadline, _, _ in self._when_idle) - time.monotonic())

    def _serve_idle_waiters(self) -> None:
        ready = self._idle_waiter_ready()
        for entry in list(self._when_idle):
            deadline, run, give_up = entry
            if ready or time.monotonic() >= deadline:
                self._when_idle.remove(entry)
                self._core.draining -= 1
                (run if ready else give_up)()

    def _send_answers(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self._loop.call_soon_threadsafe(_resolve, answers)

    def _fail(self, trace: str) -> None:
        reason = FinishReason(type="abort", message="the engine thread died; see the server's log", status_code=500, err_type="EngineDied")
        for request in [*self._core.batch.requests, *self._core.queue.waiting, *self._core.queue.held]:
            request.finish = reason
            request.deliver(request)
        self._send_answers()
        self._loop.call_soon_threadsafe(self._on_fatal, trace)


def _resolve(answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, value in answers:
        if future.done():
            continue
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)
