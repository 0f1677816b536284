"""One thread that starts the processes of pools, and lives as long as this process.

The kernel ties "dies with its parent" to the *thread* that started a process, and the thread of a caller may end at any time.
(Processes that replace killed ones are started by a thread of their pool.)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

__all__ = ["START_S", "by_keeper"]

START_S = 60.0  # a process may take this long to come up on a busy machine before a wait is called hopeless
ResultT = TypeVar("ResultT")


class _Keeper:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="keeper", daemon=True).start()

    def run(self, job: Callable[[], ResultT]) -> ResultT:
        done: Future[ResultT] = Future()
        self._jobs.put((job, done))
        return done.result(timeout=START_S)

    def _work(self) -> None:
        while True:
            job, done = self._jobs.get()
            try:
                done.set_result(job())
            except BaseException as error:
                done.set_exception(error)


_lock = threading.Lock()


@cache
def _keeper() -> _Keeper:
    return _Keeper()


def by_keeper(job: Callable[[], ResultT]) -> ResultT:
    """What `job` returns or raises, run in that thread."""
    with _lock:
        keeper = _keeper()
    return keeper.run(job)
