"""cp ranks as threads of which one runs at a time: a loss may sum over them in the middle of its terms, and again going backward.

rank 0 ── to its next sum ──▶ rank 1 ── to its next sum: there all have given ──▶ rank 0 takes the total, goes on ──▶ rank 1 ...

No two run at once, so nothing depends on which is faster, and none waits for one that has ended: that is an error of the loss. Rank 0 is
the thread that asks; the others get threads when it first sums, so a loss that never does is run without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

import torch
from torch import Tensor

from rlflow.errors import EngineError

__all__ = ["Left", "Together"]

T = TypeVar("T")
TURN_S = 60.0  # what a rank may do between two sums; terms of a few rows take milliseconds


class Left(EngineError):
    """A rank sums over ranks of which one has ended."""


class Together:
    """The sum over `size` ranks."""

    def __init__(self, size: int) -> None:
        self._turn = [threading.Semaphore(0) for _ in range(size)]
        self._given: list[Tensor | None] = [None] * size
        self._total = torch.zeros(())
        self._ended, self._sums = [False] * size, 0
        self._start: Callable[[], None] = lambda: None

    def run_all(self, threads: Executor, work: Sequence[Callable[[], T]]) -> list[T]:
        """What each rank makes, in their order; raises what one of them raised."""
        self._ended, self._sums = [False] * len(work), 0
        self._turn = [threading.Semaphore(0) for _ in work]
        running: list[Future[T]] = []

        def start() -> None:
            if not running:
                running.extend(threads.submit(self._run, rank, one) for rank, one in enumerate(work) if rank)

        self._start = start
        results: list[T] = []
        errors: list[Exception] = []
        try:
            results.append(self._run(0, work[0]))
        except Exception as failure:
            errors.append(failure)
        if not running and not errors:
            self._start = lambda: None  # a sum now would be of one rank alone: `reduce` refuses it
            return [*results, *(one() for one in work[1:])]
        errors += [error for one in running if isinstance(error := one.exception(), Exception)]
        if errors:
            raise min(errors, key=lambda one: isinstance(one, Left))
        return [*results, *(one.result() for one in running)]

    def _run(self, rank: int, work: Callable[[], T]) -> T:
        try:
            if rank:
                self._wait(rank)
            return work()
        finally:
            self._ended[rank] = True
            self._next(rank)

    def of(self, rank: int) -> Callable[[Tensor], Tensor]:
        """What `Layout.reduce` of this rank is. Raises Left if another has ended: the ranks sum different numbers of times."""

        def reduce(x: Tensor) -> Tensor:
            self._start()
            before = self._sums
            self._given[rank] = x.detach()
            if rank == len(self._turn) - 1 and not any(self._ended):
                self._total = torch.stack([one for one in self._given if one is not None]).sum(0)
                self._sums += 1
            self._next(rank)
            if not any(self._ended):
                self._wait(rank)
            if self._sums == before and (rank < len(self._turn) - 1 or any(self._ended)):
                raise Left(f"cp rank {rank} sums over ranks of which one has ended: all must sum the same things")
            return self._total.clone()  # one each: autograd ties what it returns to the graph of a rank

        return reduce

    def _wait(self, rank: int) -> None:
        if not self._turn[rank].acquire(timeout=TURN_S):
            raise Left(f"cp rank {rank} was not given its turn in {TURN_S:.0f} s: the rank before it still runs, or hangs in the loss")

    def _next(self, rank: int) -> None:
        self._turn[(rank + 1) % len(self._turn)].release()
