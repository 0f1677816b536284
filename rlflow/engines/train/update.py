"""One mini-batch: one optimizer step, or none at all.

micro-batches ── forward, loss, backward ──▶ gradients ── failed anywhere? ──▶ SUM over ranks ── finite? ──▶ clip ──▶ AdamW
                                                                │ every rank raises                  │ every rank raises
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlflow.errors import EngineError

from .denominators import Counts
from .distributed import Ranks
from .protocol import LossLike, RowsLike
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

    forward: rows of a micro-batch → what the losses read, with gradient. filled: fields of the rows that are taken from it.
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
    ) -> None:
        self._parameters, self._optimizer, self._forward, self._ranks = parameters, optimizer, forward, ranks
        self._grad_clip, self._filled = grad_clip, filled or {}

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
        sums = self._accumulate(minibatch, losses, counts, place)
        if counts["tokens"] == 0:  # no token of any rank is trained: momentum and weight decay must not move the weights either
            return Step(sums, None)
        self._ranks.sum_gradients(self._parameters, f"the sum of gradients, {place}")
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not math.isfinite(float(norm)):
            self._tell(self._blame(minibatch, losses, counts), f"the gradient is not finite ({place}); nothing was stepped")
        if self._grad_clip > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._grad_clip, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return Step(sums, float(norm))

    def _accumulate(self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], counts: Counts, place: str) -> Sums:
        """Gradients of this rank, and the sums of all ranks; raises on every rank if one failed."""
        sums: Sums = {}
        failure: Exception | None = None
        try:
            for i, rows in enumerate(minibatch):
                for key, value in self._backward(i, rows, losses, counts).items():
                    sums[key] = sums.get(key, 0.0) + value
        except Exception as error:  # told to the other ranks below, then raised: they must not wait for this one
            failure = error
        mine = {"sums": sums, "failure": None if failure is None else str(failure) or repr(failure)}
        told = self._ranks.exchange(mine, f"the losses, {place}")
        if failure is not None and not isinstance(failure, EngineError):
            raise failure
        self._raise_failures([word["failure"] for word in told], f"training failed ({place}); nothing was stepped")
        keys = sorted({key for word in told for key in word["sums"]})
        return {key: math.fsum(word["sums"].get(key, 0.0) for word in told) for key in keys}

    def _backward(self, i: int, rows: RowsLike, losses: Mapping[str, LossLike], counts: Counts) -> Sums:
        try:
            forward = self._forward(rows)
            loss, sums = micro_loss(forward, LossRows(rows, forward, self._filled), losses, counts)
        except EngineError as error:
            raise EngineError(f"micro-batch {i}: {error}") from error
        if loss.requires_grad:  # without a real token a loss may be a constant; this rank still joins every collective
            loss.backward()  # type: ignore[no-untyped-call]
        return sums

    def _blame(self, minibatch: Sequence[RowsLike], losses: Mapping[str, LossLike], counts: Counts) -> str | None:
        """The first micro-batch of this rank whose own gradient is not finite: its losses were."""
        for i, rows in enumerate(minibatch):
            self._optimizer.zero_grad(set_to_none=True)
            self._backward(i, rows, losses, counts)
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
