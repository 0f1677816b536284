"""The processes that verifiers run in: kept pools on this side, and what runs on the other.

pool_of(key)  ──▶ the pool of this verifier, started at first use
discard(key)  ──▶ stops it; the next call starts another
score(rows)       in a process: outcomes of the first rows, as many as begin in time
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import multiprocessing
import numbers
import os
import pickle
import resource
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pebble import ProcessPool

from rlflow.errors import OperatorError
from rlflow.process import die_with_parent

from .keeper import START_S, by_keeper
from .verifiers import Verifier

__all__ = ["START_S", "Key", "Outcome", "Reason", "Verdict", "Wrong", "discard", "name_of", "pool_of", "score"]

Reason = Literal["", "timeout", "crash", "error", "gave_up"]


@dataclass(frozen=True)
class Verdict:
    """What a verifier said of one row. A failed row has score 0 and a reason; `detail` is for a person."""

    score: float
    reason: Reason = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.reason != ""


class Wrong(NamedTuple):
    """What a verifier returned instead of a finite number."""

    value: str


Outcome = Verdict | Wrong


def name_of(verifier: object) -> str:
    """module.name of a verifier, for messages; of a verifier with options, those too."""
    if not hasattr(verifier, "__qualname__"):
        return f"{type(verifier).__module__}.{verifier!r}"
    return f"{getattr(verifier, '__module__', '?')}.{getattr(verifier, '__qualname__', repr(verifier))}"


# --- on this side ---------------------------------------------------------------------------------------------------------------------
class Key(NamedTuple):
    """What makes a pool: the pickled verifier, how many processes, and bytes of address space of each."""

    verifier: bytes
    workers: int
    memory_bytes: int
    alone: int = 0  # 0: the pool of all rows; k: the k-th process for rows that are suspected of killing theirs


_pools: dict[Key, ProcessPool] = {}
_lock = threading.Lock()


def pool_of(key: Key) -> ProcessPool:
    """The running pool of a verifier. Raises OperatorError if its processes do not start."""
    with _lock:
        if key not in _pools:
            _pools[key] = _started(key)
        return _pools[key]


def _started(key: Key) -> ProcessPool:
    pool = ProcessPool(
        max_workers=key.workers,
        initializer=_start,
        initargs=(os.getpid(), key.verifier, key.memory_bytes),
        context=multiprocessing.get_context("spawn"),
    )
    try:
        by_keeper(lambda: pool.schedule(score, ([], 0.0))).result(timeout=START_S)  # the first job starts the processes
    except (BrokenProcessPool, FutureTimeout) as error:
        _close(pool)
        name = name_of(pickle.loads(key.verifier))
        raise OperatorError(
            f"the judging processes of {name} do not start ({error}); the reason is printed above (memory limit: {key.memory_bytes} bytes)"
        ) from error
    return pool


def discard(key: Key, pool: ProcessPool) -> None:
    with _lock:
        if _pools.get(key) is pool:
            del _pools[key]
    _close(pool)


def _close(pool: Any) -> None:  # Any: pebble's stop is not typed
    pool.stop()
    with contextlib.suppress(FutureTimeout):
        pool.join(timeout=5)


@atexit.register
def _close_all() -> None:
    while _pools:
        _close(_pools.popitem()[1])


# --- in a judging process -------------------------------------------------------------------------------------------------------------
_verifier: Verifier


def _start(parent: int, verifier: bytes, memory_bytes: int) -> None:
    """Before the first row: tie the process to its parent, limit its memory, import what the verifier needs."""
    global _verifier
    die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    _verifier = pickle.loads(verifier)
    for module in getattr(_verifier, "__needs__", ()):
        importlib.import_module(module)


def score(rows: list[tuple[str, str]], seconds: float) -> list[Outcome]:
    """Outcomes of the first rows: as many as begin within `seconds`, one at least."""
    end = time.monotonic() + seconds
    outcomes: list[Outcome] = []
    for text, answer in rows:
        if outcomes and time.monotonic() > end:
            break
        outcomes.append(_outcome(text, answer))
    return outcomes


def _outcome(text: str, answer: str) -> Outcome:
    if not text.strip():
        return Verdict(0.0)
    try:
        score: Any = _verifier(text, answer)
    except BaseException as error:  # SystemExit too: whatever a verifier raises is a fact about its row
        return Verdict(0.0, "error", f"{type(error).__name__}: {error}")
    if isinstance(score, numbers.Real) and math.isfinite(score):
        return Verdict(float(score))
    return Wrong(repr(score))
