"""The attempt at a trajectory, or at an evaluation, that an operator is called for, as its thread sees it.

    attempt = current()                              None where nobody could give it up: a test
    address = attempt.next_turn()                    where its next turn is asked for; waits until the controller says
    with attempt.request(client.abort) as rid: ...   one request of an engine, under a name that no other request of the run ever has
    attempt.raise_if_given_up()                      wherever else it takes long

    turn 0 ──▶ the engine that it was dispatched to
    turn k ──Turn(k)──▶ controller ──Continue(k, address)──▶ an engine that holds its weights or newer ones, as a rule the same

Turns are numbered as they are asked for, over all branches of a trajectory that forks, and the controller is asked for one at a time: a
branch waits until that of another has its answer. The requests themselves run side by side.

Who gives it up ends the wait for its turn and the requests that are open: each engine answers that its one was aborted, and no other
is begun.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from .errors import EngineError, WaitTimeout
from .measure import note

__all__ = ["Attempt", "current"]

AGAIN_SECONDS = 0.5  # an abort that came before its request is sent again

_log = logging.getLogger(__name__)
_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


@dataclass(frozen=True)
class _Turn:
    """One that the controller was asked for. address: where it may go on."""

    number: int
    address: Future[str] = field(default_factory=Future)


@dataclass(frozen=True)
class _Request:
    """One that is open. abort: of the engine that has it, the same for all that it has; back: set when it has come back."""

    abort: Callable[[str], None]
    back: threading.Event = field(default_factory=threading.Event)


class Attempt:
    """name: UID.TRAJ_UID.ATTEMPT, or one of an evaluation; its requests are NAME.0, NAME.1, ...

    address: of the engine for its first turn. ask: tells the controller the number of a later one, whose answer is given to `go_on`
    within so many seconds; None: all are for that engine, as those of an evaluation, which is pinned. Measured:
    turns/continued, of which turns/moved to another engine, and turns/waited_seconds of all of them.
    """

    def __init__(self, name: str, address: str, ask: Callable[[int], None] | None, seconds: float) -> None:
        self.name, self._address, self._ask, self._seconds = name, address, ask, seconds
        self._given_up = threading.Event()
        self._lock, self._requests, self._open = threading.Lock(), 0, dict[str, _Request]()
        self._one_turn, self._turns, self._asked = threading.Lock(), 0, _Turn(0)

    @contextmanager
    def running(self) -> Iterator[Attempt]:
        """What runs inside, in this thread, is this attempt."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    # --- turns ----------------------------------------------------------------------------------------------------------------------
    def next_turn(self) -> str:
        """The address of the engine that the next turn is to be asked of.

        Raises EngineError when the attempt was or is given up, WaitTimeout where no answer comes.
        """
        with self._one_turn:
            number, self._turns = self._turns, self._turns + 1
            if number == 0 or self._ask is None:
                return self._address
            with self._lock:
                self.raise_if_given_up()
                self._asked = asked = _Turn(number)
            self._address = self._answered(asked, self._ask)
            return self._address

    def _answered(self, asked: _Turn, ask: Callable[[int], None]) -> str:
        """The address that the controller gives, and what that cost, measured."""
        start = time.perf_counter()
        ask(asked.number)
        try:
            address = asked.address.result(self._seconds)
        except TimeoutError:
            what = f"turn {asked.number} of trajectory {self.name}"
            raise WaitTimeout(f"{what}: the controller said nothing for {self._seconds:g} s") from None
        note("turns/continued", 1.0)
        note("turns/waited_seconds", time.perf_counter() - start)
        if address != self._address:
            note("turns/moved", 1.0)
        return address

    def go_on(self, turn: int, address: str) -> None:
        """The controller's word: this turn may be asked of the engine at `address`. One that nobody waits for changes nothing."""
        with self._lock:
            if self._asked.number == turn and not self._asked.address.done():
                self._asked.address.set_result(address)

    # --- requests -------------------------------------------------------------------------------------------------------------------
    @contextmanager
    def request(self, abort: Callable[[str], None]) -> Iterator[str]:
        """The name of one request, while it is open. abort: ends it on its engine. Raises EngineError when the attempt was given up."""
        request = _Request(abort)
        with self._lock:
            self.raise_if_given_up()
            rid = f"{self.name}.{self._requests}"
            self._requests += 1
            self._open[rid] = request
        try:
            yield rid
        finally:
            with self._lock:
                del self._open[rid]
            request.back.set()

    # --- the end --------------------------------------------------------------------------------------------------------------------
    def raise_if_given_up(self) -> None:
        if self._given_up.is_set():
            raise self._over()

    def refuse(self) -> None:
        """Begin no turn and no request any more; who waits for a turn is told. At once: nothing is asked of an engine."""
        with self._lock:
            self._given_up.set()
            if not self._asked.address.done():
                self._asked.address.set_exception(self._over())

    def give_up(self) -> None:
        """`refuse`, and abort the open requests until they are back. Those of several engines side by side: one may hang."""
        self.refuse()
        engines = dict[Callable[[str], None], dict[str, _Request]]()
        with self._lock:
            for rid, request in self._open.items():
                engines.setdefault(request.abort, {})[rid] = request
        threads = [threading.Thread(target=_end, args=(waiting,), daemon=True) for waiting in engines.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _over(self) -> EngineError:
        return EngineError(f"attempt {self.name} was given up")


def _end(waiting: dict[str, _Request]) -> None:
    """Abort the requests of one engine until they are back."""
    while waiting:
        for rid, request in waiting.items():
            if not request.back.is_set():
                _abort(rid, request)
        waiting = {rid: request for rid, request in waiting.items() if not request.back.wait(AGAIN_SECONDS)}


def _abort(rid: str, request: _Request) -> None:
    try:
        request.abort(rid)
    except EngineError as error:  # one that is gone has nothing to abort: its request fails by itself
        _log.warning("request %s could not be aborted: %s", rid, error)


def current() -> Attempt | None:
    return _current.get()
