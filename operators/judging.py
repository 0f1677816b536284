"""Run a verifier over many texts in processes of their own, each row under a time limit.

    score_texts ──chunks──▶ pool of processes (pebble, spawned; one pool a verifier, kept until exit)
        scores of the first k rows ──▶ kept; the others go again (a chunk ends early, before its time is up)
        too slow, or a process died ──▶ its rows are suspects
    suspects ──each alone──▶ `workers` pools of one process
        row too slow | process died | raised ──▶ score 0, failed, with the reason
        8 rows in a row too slow or dead, or 32 too slow in all ──▶ the rest of the call: failed, gave up

One bad row costs itself and never the batch, and the verdicts come back in the order of the texts. Suspects run alone because
a pool cannot always tell which of two rows killed a process. A verifier that hangs on everything costs about
(2 · 8 / workers + 2) · (timeout_s + the start of a process) a call, however many rows there are. The processes have no torch,
a memory limit, and die with the one that started them.
"""

from __future__ import annotations

import math
import pickle
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from rlflow.errors import DataError, WaitTimeout

from .judging_pool import START_S, Key, Outcome, Reason, Verdict, Wrong, discard, name_of, pool_of, score
from .verifiers import Verifier

__all__ = ["MEMORY_BYTES", "Reason", "Verdict", "name_of", "score_texts"]

CHUNK_ROWS = 64  # rows in one message to a process
RESTART_S = 10.0  # a process that replaces a killed one may take this long
TRIES = 2  # how often rows are sent to a pool that breaks under them
GIVE_UP_IN_A_ROW = 8  # rows (or messages) of a call, one after the other, that were too slow or ended their process
GIVE_UP_IN_ALL = 32  # rows of a call that were too slow
MEMORY_BYTES = 4 << 30  # address space of a judging process

BROKEN = (BrokenProcessPool, RuntimeError)  # RuntimeError: pebble takes no work for a pool that broke before

_slots: dict[Key, queue.LifoQueue[Key]] = {}  # of each pool, the processes for suspects that are free now
_slots_lock = threading.Lock()


def score_texts(
    verifier: Verifier,
    texts: Sequence[str],
    answers: Sequence[str],
    *,
    timeout_s: float = 5.0,
    workers: int = 2,
    memory_bytes: int = MEMORY_BYTES,
) -> list[Verdict]:
    """`verifier(text, answer)` of each row, in order. A blank text scores 0 without being asked about.

    timeout_s: seconds a row may take before its process is killed.
    memory_bytes: address space of a process; a verifier that asks for more raises MemoryError or dies.
    Raises DataError naming the row for a score that is no finite number, and for a verifier that another process cannot
    import; OperatorError if the processes do not start; WaitTimeout if they stop answering.
    """
    if len(texts) != len(answers):
        raise DataError(f"{len(texts)} texts but {len(answers)} answers; give one answer a text")
    if timeout_s <= 0 or workers < 1:
        raise DataError(f"timeout_s={timeout_s}, workers={workers}: both must be positive")
    return _Batch(verifier, list(zip(texts, answers, strict=True)), timeout_s, Key(_by_name(verifier), workers, memory_bytes)).run()


def _by_name(verifier: Verifier) -> bytes:
    try:
        return pickle.dumps(verifier)
    except Exception as error:
        raise DataError(f"{name_of(verifier)} cannot go to another process ({error}); define it at the top level of a module") from error


@contextmanager
def _slot(key: Key) -> Iterator[Key]:
    """A pool of one process that no other thread uses meanwhile. LIFO: no more are started than are needed at once."""
    with _slots_lock:
        if key not in _slots:
            _slots[key] = queue.LifoQueue()
            for number in range(key.workers, 0, -1):
                _slots[key].put(key._replace(workers=1, alone=number))
    free = _slots[key].get()  # others hold one for START_S and a row's time at most
    try:
        yield free
    finally:
        _slots[key].put(free)


class _Patience:
    """Counts what a call loses to a verifier that hangs or dies. Shared by the threads of the call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = self._slow = 0

    def saw(self, outcome: list[Outcome] | Verdict) -> None:
        with self._lock:
            lost = isinstance(outcome, Verdict)
            self._in_a_row = self._in_a_row + 1 if lost else 0
            self._slow += isinstance(outcome, Verdict) and outcome.reason == "timeout"

    @property
    def lost(self) -> str:
        """Why it is over, "" while it is not."""
        if self._in_a_row >= GIVE_UP_IN_A_ROW:
            return f"{self._in_a_row} rows in a row were too slow or ended their process"
        return f"{self._slow} rows were too slow" if self._slow >= GIVE_UP_IN_ALL else ""


# --- one call -------------------------------------------------------------------------------------------------------------------------
class _Batch:
    """The rows of one call: `ranges` are still to score, `suspects` to score alone, `verdicts` are known."""

    def __init__(self, verifier: Verifier, rows: list[tuple[str, str]], timeout_s: float, key: Key) -> None:
        self.verifier, self.rows, self.timeout_s, self.key = verifier, rows, timeout_s, key
        size = max(1, min(CHUNK_ROWS, math.ceil(len(rows) / key.workers)))
        self.ranges = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
        self.suspects: list[int] = []
        self.verdicts: dict[int, Verdict] = {}

    def run(self) -> list[Verdict]:
        tries = TRIES
        while self.ranges and tries:  # each round settles at least one row of a range, or suspects all of them
            tries -= not self._round()
        self.suspects += [row for rows in self.ranges for row in rows]
        self._judge_suspects()
        return [self.verdicts[row] for row in range(len(self.rows))]

    def _round(self) -> bool:
        """Send all ranges and keep what comes back; False if the pool broke under it."""
        pool, waiting = pool_of(self.key), self.ranges
        seconds, patience = START_S + len(waiting) * (self.timeout_s + RESTART_S), _Patience()
        self.ranges = []
        try:
            futures = [self._send(pool, rows) for rows in waiting]
            while waiting:
                if patience.lost:  # what it is about is seen row by row
                    for future in futures:
                        future.cancel()  # type: ignore[no-untyped-call]
                    self.suspects += [row for rows in waiting for row in rows]
                    break
                outcome = self._outcome(futures.pop(0), seconds)
                patience.saw(outcome)
                rows, *waiting = waiting
                if isinstance(outcome, Verdict):
                    self.suspects += rows
                else:
                    self._settle(rows, outcome)
        except BROKEN:
            self.ranges += waiting
            discard(self.key, pool)
            return False
        except WaitTimeout:
            discard(self.key, pool)
            raise
        return True

    def _judge_suspects(self) -> None:
        rows, patience = sorted(self.suspects), _Patience()
        if not rows:
            return
        with ThreadPoolExecutor(min(self.key.workers, len(rows)), thread_name_prefix="suspects") as threads:
            for row, outcome in zip(rows, threads.map(lambda row: self._suspect(row, patience), rows), strict=True):
                self._settle(range(row, row + 1), outcome)

    def _suspect(self, row: int, patience: _Patience) -> list[Outcome] | Verdict:
        if why := patience.lost:
            return Verdict(0.0, "gave_up", f"not asked: {why}")
        outcome = self._alone(row)
        patience.saw(outcome)
        return outcome

    def _alone(self, row: int) -> list[Outcome] | Verdict:
        """One row in a process that is doing nothing else, so that its end is this row's doing."""
        with _slot(self.key) as key:
            for _ in range(TRIES):
                pool = pool_of(key)
                try:
                    return self._outcome(self._send(pool, range(row, row + 1)), START_S + self.timeout_s)
                except BROKEN:
                    discard(key, pool)
                except WaitTimeout:
                    discard(key, pool)
                    raise
        return Verdict(0.0, "crash", f"its process ended, {TRIES} times")

    def _send(self, pool: ProcessPool, rows: range) -> ProcessFuture[list[Outcome]]:
        return pool.schedule(score, ([self.rows[row] for row in rows], self.timeout_s / 2), timeout=self.timeout_s)

    def _outcome(self, future: ProcessFuture[list[Outcome]], patience: float) -> list[Outcome] | Verdict:
        try:
            return future.result(timeout=patience)
        except ProcessExpired as error:
            return Verdict(0.0, "crash", f"its process ended with code {error.exitcode}")
        except FutureTimeout as error:
            if not future.done():
                raise WaitTimeout(f"judging processes of {name_of(self.verifier)}: no answer in {patience:.0f} s") from error
            return Verdict(0.0, "timeout", f"no score within {self.timeout_s} s")

    def _settle(self, rows: range, outcomes: list[Outcome] | Verdict) -> None:
        """Keep the outcomes of the first rows, queue the others. A verdict is that of a row that was alone."""
        if isinstance(outcomes, Verdict):
            outcomes = [outcomes]
        for row, outcome in zip(rows, outcomes, strict=False):
            if isinstance(outcome, Wrong):
                text = self.rows[row][0][:80]
                raise DataError(f"{name_of(self.verifier)} returned {outcome.value} for row {row} ({text!r}); return a finite float")
            self.verdicts[row] = outcome
        if rest := rows[len(outcomes) :]:
            self.ranges.append(rest)
