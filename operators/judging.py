"""Run a verifier over many texts in processes of their own, each row under a time limit.

    score_texts ──chunks──▶ pool of processes (pebble, spawned; one pool a verifier, kept until exit)
        scores of the first k rows ──▶ kept; the others go again (a chunk ends early, before its time is up)
        too slow, or a process died ──▶ its rows are suspects
    suspects ──one at a time──▶ a process that nobody else uses
        row too slow | process died | raised ──▶ score 0, failed, with the reason

One bad row costs itself and never the batch, and the verdicts come back in the order of the texts. Suspects run alone because
a pool cannot always tell which of two rows killed a process. The processes have no torch, a memory limit, and die with the one
that started them.
"""

from __future__ import annotations

import math
import pickle
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from rlflow.errors import DataError, WaitTimeout

from .judging_pool import START_S, Key, Outcome, Reason, Verdict, Wrong, discard, name_of, pool_of, score
from .verifiers import Verifier

__all__ = ["MEMORY_BYTES", "Reason", "Verdict", "failure_counts", "name_of", "score_texts"]

CHUNK_ROWS = 64  # rows in one message to a process
RESTART_S = 10.0  # a process that replaces a killed one may take this long
TRIES = 2  # how often rows are sent to a pool that breaks under them
MEMORY_BYTES = 4 << 30  # address space of a judging process

BROKEN = (BrokenProcessPool, RuntimeError)  # RuntimeError: pebble takes no work for a pool that broke before

_failures: Counter[str] = Counter()
_one_at_a_time = threading.Lock()


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
    batch = _Batch(verifier, list(zip(texts, answers, strict=True)), timeout_s, Key(_by_name(verifier), workers, memory_bytes))
    verdicts = batch.run()
    _failures.update(verdict.reason for verdict in verdicts if verdict.failed)
    return verdicts


def failure_counts() -> dict[str, int]:
    """Rows judged by this process that failed so far, by reason."""
    return dict(_failures)


def _by_name(verifier: Verifier) -> bytes:
    try:
        return pickle.dumps(verifier)
    except Exception as error:
        raise DataError(f"{name_of(verifier)} cannot go to another process ({error}); define it at the top level of a module") from error


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
        for row in sorted(self.suspects):
            self._settle(range(row, row + 1), self._alone(row))
        return [self.verdicts[row] for row in range(len(self.rows))]

    def _round(self) -> bool:
        """Send all ranges and keep what comes back; False if the pool broke under it."""
        pool, waiting = pool_of(self.key), self.ranges
        patience = START_S + len(waiting) * (self.timeout_s + RESTART_S)
        self.ranges = []
        try:
            futures = [self._send(pool, rows) for rows in waiting]
            while waiting:
                outcome = self._outcome(futures.pop(0), patience)
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

    def _alone(self, row: int) -> list[Outcome] | Verdict:
        """One row in a process that is doing nothing else, so that its end is this row's doing."""
        key = self.key._replace(workers=1, alone=True)
        with _one_at_a_time:
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
