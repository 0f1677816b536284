"""One mini-batch: one optimizer step, or none at all.

micro-batches ── forward without gradient ──▶ statistics of the mini-batch, of losses that have one
micro-batches ── forward, loss, backward ──▶ gradients ── failed anywhere? ──▶ SUM over ranks ── finite? ──▶ clip ──▶ AdamW
                                                                │ every rank raises                  │ every rank raises
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlflow.errors import EngineError
from rlflow.language.loss import has_statistic

from .denominators import Counts
from .distributed import Ranks
from .packed import PackedRows
from .protocol import LossLike, RowsLike
from .statistics import Measured, Statistics, measured, statistics_of, word
from .terms import Sums, micro_loss, row_names
from .view import LossRows

__all__ = ["Step", "Updater"]

Forward = Callable[[RowsLike], Any]


@dataclass(frozen=True)
class Step:
    """What one mini-batch did. `grad_norm` is that before clipping; None if there was no token to train and so no step."""

    sums: Sums
    grad_norm: float | None


class Updater:
    """Makes optimizer steps.

    forward: rows of a micro-batch → what the losses read, with gradient. filled: fields of the rows that are taken from it. packed: rows
    run end to end, as one sequence.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        forward: Forward,
        ranks: Ranks,
        *,
        grad_clip: float,
        filled: Mapping[str, str] | None = None,
        packed: bool = False,
    ) -> None:
        self._parameters, self._optimizer, self._forward, self._ranks = parameters, optimizer, forward, ranks
        self._grad_clip, self._filled, self._packed = grad_clip, filled or {}, packed

    def step(self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], counts: Counts, *, lr: float, place: str) -> Step:
        """One optimizer step on the mini-batch that all ranks share. Collective.

        counts: over all ranks. place: what an error calls this step. Raises EngineError, on every rank and before anything is
        stepped, if a loss or a gradient of any rank is not finite.
        """
        self._optimizer.zero_grad(set_to_none=True)
        try:
            return self._step(minibatch, losses, counts, lr, place)
        finally:
            self._optimizer.zero_grad(set_to_none=True)  # also frees them

    def _step(self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], counts: Counts, lr: float, place: str) -> Step:
        if counts["tokens"] == 0:  # no token of any rank is trained: momentum and weight decay must not move the weights either
            plain = {name: loss for name, loss in losses.items() if not has_statistic(loss)}
            return Step(self._accumulate(minibatch, plain, counts, None, place) if plain else {}, None)
        statistics = self._first_pass(minibatch, losses, place)
        sums = self._accumulate(minibatch, losses, counts, statistics, place)
        self._ranks.sum_gradients(self._parameters, f"the sum of gradients, {place}")
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not math.isfinite(float(norm)):
            self._tell(self._blame(minibatch, losses, counts, statistics), f"the gradient is not finite ({place}); nothing was stepped")
        if self._grad_clip > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._grad_clip, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return Step(sums, float(norm))

    def _first_pass(self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], place: str) -> Statistics | None:
        """What the losses make of the mini-batch over all ranks before its terms; None if none asks. Collective."""
        asking = {name: loss for name, loss in losses.items() if has_statistic(loss)}
        if not asking:
            return None
        mine: list[Measured] = []

        @torch.no_grad()
        def work() -> Any:
            for i, rows in enumerate(minibatch):
                with _of_micro_batch(i):
                    mine.append(measured(*self._seen(rows), asking))
            return word(mine)

        told = self._together(work, f"the first pass, {place}", place)
        return statistics_of(asking, mine, told, self._ranks, f"the tokens of the first pass, {place}")

    def _accumulate(
        self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], counts: Counts, statistics: Statistics | None, place: str
    ) -> Sums:
        """Gradients of this rank, and the sums of all ranks; raises on every rank if one failed."""

        def work() -> Any:
            sums: Sums = {}
            for i, rows in enumerate(minibatch):
                for key, value in self._backward(i, rows, losses, counts, statistics).items():
                    sums[key] = sums.get(key, 0.0) + value
            return sums

        told: list[Sums] = self._together(work, f"the losses, {place}", place)
        return {key: math.fsum(sums.get(key, 0.0) for sums in told) for key in sorted({key for sums in told for key in sums})}

    def _together(self, work: Callable[[], Any], what: str, place: str) -> list[Any]:
        """The words (JSON) of all ranks; one that fails tells the others, and raises: they must not wait for it."""
        mine, failure = None, None
        try:
            mine = work()
        except Exception as error:  # told to the other ranks, then raised
            failure = error
        told = self._ranks.exchange({"word": mine, "failure": None if failure is None else str(failure) or repr(failure)}, what)
        if failure is not None and not isinstance(failure, EngineError):
            raise failure
        self._raise_failures([word["failure"] for word in told], f"training failed ({place}); nothing was stepped")
        return [word["word"] for word in told]

    def _seen(self, rows: RowsLike) -> tuple[Any, LossRows]:
        """The forward of a micro-batch, and its rows as a loss sees them."""
        if self._packed:
            together = PackedRows(rows)
            forward = self._forward(together)
            return forward, LossRows(together, forward, self._filled, together.layout)
        forward = self._forward(rows)
        return forward, LossRows(rows, forward, self._filled)

    def _backward(self, i: int, rows: RowsLike, losses: Mapping[str, LossLike], counts: Counts, statistics: Statistics | None) -> Sums:
        with _of_micro_batch(i):
            forward, view = self._seen(rows)
            loss, sums = micro_loss(forward, view, losses, counts, statistics.of(i, forward, view) if statistics else {})
        if loss.requires_grad:  # without a real token a loss may be a constant; this rank still joins every collective
            loss.backward()  # type: ignore[no-untyped-call]
        return sums

    def _blame(
        self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], counts: Counts, statistics: Statistics | None
    ) -> str | None:
        """The first micro-batch of this rank whose own gradient is not finite: its losses were."""
        for i, rows in enumerate(minibatch):
            self._optimizer.zero_grad(set_to_none=True)
            self._backward(i, rows, losses, counts, statistics)
            if not all(bool(p.grad.isfinite().all()) for p in self._parameters if p.grad is not None):
                return f"micro-batch {i}, among {row_names(rows, ~rows.is_pad.bool())}"
        return None

    def _tell(self, mine: str | None, headline: str) -> None:
        told = self._ranks.exchange(mine, headline)
        self._raise_failures(told if any(told) else ["each micro-batch's gradient is finite, their sum is not"], headline)

    def _raise_failures(self, told: Sequence[str | None], headline: str) -> None:
        failed = [f"rank {rank}: {failure}" if self._ranks.size > 1 else failure for rank, failure in enumerate(told) if failure]
        if failed:
            raise EngineError(f"{headline}: {'; '.join(failed)}")


@contextmanager
def _of_micro_batch(i: int) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        raise EngineError(f"micro-batch {i}: {error}") from error
