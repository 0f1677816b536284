"""Where episodes live: a lane is one thread with an event loop, in this process or alone in one of its own; one episode at a time.

    take(isolated) ──▶ lane ── reset, step, step ... ──▶ give_back ──▶ the next episode's
                                   │ hung, died, could not be closed
                                   └──▶ discard: its thread ends when the call that blocks it does; its process is killed

A call that awaits is cancelled when its time is up. One that blocks (`time.sleep`, a loop without end) cannot be: the caller goes on
without it, and its thread is lost until it returns. After LOST_MOST of those no more episodes are begun in threads. What ends a
process (a segmentation fault, `os._exit`, too much memory) or holds Python's lock needs a lane in a process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import multiprocessing
import os
import resource
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

from pebble import ProcessExpired, ProcessPool

from rlflow.errors import DataError, OperatorError, RlflowError
from rlflow.process import die_with_parent

from .environment import Environment, Episode, Reply, Start
from .keeper import START_S, by_keeper

__all__ = ["Died", "Hung", "Lane", "Raised", "discard", "give_back", "take"]

GRACE_S = 1.0  # a cancelled call gets this long to let go before its thread is given up
LOST_MOST = 64  # threads that hang at once

T = TypeVar("T")


class Hung(RlflowError):
    """A call did not return in its time."""


class Died(RlflowError):
    """The process of a lane ended."""


@dataclass(frozen=True)
class Raised:
    """What an environment raised, and where. row: it refused the row itself (DataError)."""

    said: str
    row: bool

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return cls(f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})", isinstance(error, DataError))


class Opening(NamedTuple):
    """What an episode begins with."""

    text: str
    state: str | None


class Lane(Protocol):
    """Calls of one episode, each at most `seconds` long. Raise Hung and Died; what the environment raises comes back."""

    isolated: bool

    def reset(self, environment: Environment, prompt: str, answer: str, seed: int, seconds: float) -> Opening | Raised: ...
    def step(self, text: str, seconds: float) -> Reply | Raised: ...
    def close(self, seconds: float) -> Raised | None: ...
    def discard(self) -> None: ...


# --- in a thread of this process --------------------------------------------------------------------------------------------------------
class ThreadLane:
    """An event loop in a daemon thread: an episode's background tasks run between its calls."""

    isolated = False
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        _room_for_files()
        self._loop = asyncio.new_event_loop()
        self._episode: Episode | None = None
        self.thread = threading.Thread(target=self._run, name=f"environment-{next(self._numbers)}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def reset(self, environment: Environment, prompt: str, answer: str, seed: int, seconds: float) -> Opening | Raised:
        start: Any = self._ask(lambda: environment.reset(prompt, answer, seed=seed), seconds)
        if isinstance(start, Raised):
            return start
        if not isinstance(start, Start) or not isinstance(start.text, str) or not isinstance(start.state, str | None):
            return Raised(f"nothing, but it returned {start!r}; return Start(episode, text, state)", row=False)
        self._episode = start.episode
        return Opening(start.text, start.state)

    def step(self, text: str, seconds: float) -> Reply | Raised:
        assert self._episode is not None
        episode = self._episode
        return self._ask(lambda: episode.step(text), seconds)

    def close(self, seconds: float) -> Raised | None:
        episode, self._episode = self._episode, None
        return None if episode is None else self._ask(episode.close, seconds)

    def discard(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _ask(self, call: Callable[[], Awaitable[T]], seconds: float) -> T | Raised:
        future = asyncio.run_coroutine_threadsafe(_within(call, seconds), self._loop)
        try:
            outcome = future.result(seconds + 2 * GRACE_S)
        except FutureTimeout:
            raise Hung(f"did not return within {seconds:g} s, and cannot be cancelled: it blocks instead of awaiting") from None
        if isinstance(outcome, Hung):
            raise outcome
        return outcome


@cache
def _room_for_files() -> None:
    """A loop holds three descriptors, and there is one a trajectory: as many as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _within(call: Callable[[], Awaitable[T]], seconds: float) -> T | Raised | Hung:
    task = asyncio.ensure_future(_caught(call))
    await asyncio.wait({task}, timeout=seconds)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_S)
    return Hung(f"did not return within {seconds:g} s")


async def _caught(call: Callable[[], Awaitable[T]]) -> T | Raised:
    try:
        return await call()
    except BaseException as error:  # SystemExit too, which would end the loop
        return Raised.of(error)


# --- in a process -----------------------------------------------------------------------------------------------------------------------
class ProcessLane:
    """A thread lane in a process of its own, which is killed when a call hangs there."""

    isolated = True

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPool(max_workers=1, initializer=_begin, initargs=(os.getpid(),), context=context)
        by_keeper(lambda: self._pool.schedule(_nothing))  # the first job starts the process

    def reset(self, environment: Environment, prompt: str, answer: str, seed: int, seconds: float) -> Opening | Raised:
        start: Opening | Raised = self._ask("reset", (environment, prompt, answer, seed, seconds), START_S + seconds)
        return start

    def step(self, text: str, seconds: float) -> Reply | Raised:
        reply: Reply | Raised = self._ask("step", (text, seconds), seconds)
        return reply

    def close(self, seconds: float) -> Raised | None:
        failed: Raised | None = self._ask("close", (seconds,), seconds)
        return failed

    def discard(self) -> None:
        self._pool.stop()  # type: ignore[no-untyped-call]
        with contextlib.suppress(FutureTimeout):
            self._pool.join(timeout=5)

    def _ask(self, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        try:
            return self._pool.schedule(_answer, (name, arguments), timeout=seconds + 3 * GRACE_S).result(timeout=seconds + 10 * GRACE_S)
        except ProcessExpired as error:
            raise Died(f"ended its process with code {error.exitcode}") from error
        except (BrokenProcessPool, RuntimeError) as error:
            raise Died(f"ended its process, or it did not start ({error})") from error
        except FutureTimeout:
            raise Hung(f"did not return within {seconds:g} s; its process is killed") from None


_inside: ThreadLane  # of a process that was made for one


def _begin(parent: int) -> None:
    global _inside
    die_with_parent(parent)
    _inside = ThreadLane()


def _nothing() -> None:
    """The first job of a process."""


def _answer(name: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_inside, name)(*arguments)


# --- the lanes of this process ----------------------------------------------------------------------------------------------------------
class _Lanes:
    """Free lanes, the last one used first, and those that were given up while a call held their thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[bool, list[Lane]] = {False: [], True: []}
        self._lost: list[ThreadLane] = []

    def take(self, isolated: bool) -> Lane:
        with self._lock:
            self._lost = [lane for lane in self._lost if lane.thread.is_alive()]
            if not isolated and len(self._lost) >= LOST_MOST:
                raise OperatorError(
                    f"{len(self._lost)} calls of environments hang in threads of this process: await what waits, or run environments in "
                    "processes, which can be killed: limits=EnvironmentLimits(isolated=True)"
                )
            if self._free[isolated]:
                return self._free[isolated].pop()
        return ProcessLane() if isolated else ThreadLane()

    def give_back(self, lane: Lane) -> None:
        with self._lock:
            self._free[lane.isolated].append(lane)

    def discard(self, lane: Lane) -> None:
        lane.discard()
        if isinstance(lane, ThreadLane):
            with self._lock:
                self._lost.append(lane)

    def close(self) -> None:
        for lane in (*self._free[True], *self._free[False]):
            lane.discard()


_lanes = _Lanes()
take, give_back, discard = _lanes.take, _lanes.give_back, _lanes.discard
atexit.register(_lanes.close)
