"""The attempt at a trajectory that an operator is called for, as its thread sees it.

    attempt = current()                         None where no trajectory is sampled: an evaluation, a test
    with attempt.request() as rid: ...          one request of an engine, under a name that no other request of the run ever has
    attempt.raise_if_given_up()                 between turns

Who gives it up ends the request that is open: the engine answers that it was aborted, and no other request is begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import EngineError

__all__ = ["Attempt", "current"]

AGAIN_SECONDS = 0.5  # an abort that came before its request is sent again

_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


class Attempt:
    """name: UID.TRAJ_UID.ATTEMPT; its requests are NAME.0, NAME.1, ..."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._given_up = threading.Event()
        self._open: dict[str, threading.Event] = {}  # by request: set when it has come back
        self._lock, self._requests = threading.Lock(), 0

    @contextmanager
    def running(self) -> Iterator[Attempt]:
        """What runs inside, in this thread, is this attempt."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    @contextmanager
    def request(self) -> Iterator[str]:
        """The name of one request, while it is open. Raises EngineError when the attempt was given up."""
        with self._lock:
            self.raise_if_given_up()
            rid, back = f"{self.name}.{self._requests}", threading.Event()
            self._requests += 1
            self._open[rid] = back
        try:
            yield rid
        finally:
            with self._lock:
                del self._open[rid]
            back.set()

    def raise_if_given_up(self) -> None:
        if self._given_up.is_set():
            raise EngineError(f"trajectory {self.name} was given up")

    def give_up(self, abort: Callable[[str], None]) -> None:
        """Begin no request any more, and abort the open ones until they are back. abort: of one request of the engine."""
        with self._lock:
            self._given_up.set()
            waiting = dict(self._open)
        while waiting:
            for rid in waiting:
                abort(rid)
            waiting = {rid: back for rid, back in waiting.items() if not back.wait(AGAIN_SECONDS)}


def current() -> Attempt | None:
    return _current.get()
