"""Terms of the losses of one micro-batch → what is differentiated, and sums for the metrics.

loss_micro = Σ over losses of  sum(weight · terms of real rows) / divisor        (never a mean: see protocol.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlflow.errors import EngineError

from .denominators import Counts, counted, divisor, row_weight
from .forward import PolicyOutput
from .protocol import LossLike
from .view import LossRows

__all__ = ["Sums", "loss_names", "mean_metrics", "micro_loss", "row_names", "trained_tokens"]

Sums = dict[str, float]  # metric → sum over the tokens (rows, ...) of a mini-batch


def loss_names(losses: Iterable[LossLike]) -> dict[str, LossLike]:
    """`{"ppo_clip": ..., "kl_penalty": ...}`; the second of a class is `ppo_clip#2`."""
    named: dict[str, LossLike] = {}
    for loss in losses:
        name, copies = type(loss).__name__, 1
        while (key := name if copies == 1 else f"{name}#{copies}") in named:
            copies += 1
        named[key] = loss
    return named


def micro_loss(
    forward: Any,
    rows: LossRows,
    losses: Mapping[str, LossLike],
    counts: Counts,
    statistics: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> tuple[Tensor, Sums]:
    """The share of this micro-batch in the mini-batch's loss (a scalar with gradient), and its sums.

    statistics: what losses that have one made of the mini-batch, by name, in the layout of these rows.
    Raises EngineError if terms have another shape than `response_mask` or [b], are not 0 outside `response_mask` or not finite (naming
    the rows), or if real tokens yield a loss without gradient.
    """
    total: Tensor | None = None
    sums: Sums = {}
    trained = trained_tokens(rows)
    for name, loss in losses.items():
        seen = rows.with_statistics(statistics[name]) if statistics and name in statistics else rows
        summed = _sum_terms(name, loss(forward, seen), rows, _weights(loss, rows, counts), needs_gradient=bool(trained.any()))
        share = summed / divisor(loss, counts)
        total = share if total is None else total + share
        sums[f"{name}/loss"] = float(summed.detach())
        with torch.no_grad():
            for metric, value in getattr(loss, "metrics", _no_metrics)(forward, seen).items():
                sums[f"{name}/{metric}"] = _masked_sum(value, trained)
    if isinstance(forward, PolicyOutput):
        sums["entropy"] = _masked_sum(forward.measured_entropy(), trained)
    assert total is not None, "an objective has at least one active loss"
    return total, sums


def trained_tokens(rows: LossRows) -> Tensor:
    """Which tokens count: those in `response_mask` of rows that are no padding. bool, in the layout of the tokens."""
    mask: Tensor = rows.response_mask.bool() & ~rows.per_token(rows.is_pad.bool())
    return mask


def _no_metrics(forward: Any, rows: Any) -> dict[str, Tensor]:
    return {}


def _weights(loss: LossLike, rows: LossRows, counts: Counts) -> Tensor | None:
    """[b], where a loss weighs rows."""
    by = row_weight(loss)
    return None if by == "row" or counts.shares is None else counts.shares.of_rows(by, rows)


def _sum_terms(name: str, terms: Tensor, rows: LossRows, weights: Tensor | None, *, needs_gradient: bool) -> Tensor:
    mask: Tensor = rows.response_mask.bool()
    if not isinstance(terms, Tensor):
        raise EngineError(f"{name} returned {terms!r}; a loss returns terms, a tensor in the shape of response_mask or [b] a row")
    by_row = terms.shape == rows.is_pad.shape
    if not by_row and terms.shape != mask.shape:
        raise EngineError(
            f"{name} returned shape {list(terms.shape)} for {rows.is_pad.shape[0]} rows and a response_mask of {list(mask.shape)}; "
            "a loss returns terms, one a token in the shape of response_mask or [b] a row, and never reduces over rows"
        )
    if not by_row:
        _refuse_unmasked(name, terms.detach(), mask, rows)
    if needs_gradient and not terms.requires_grad:
        raise EngineError(f"{name} has no gradient: its terms do not depend on the forward (a detach, a no_grad, or a constant)")
    real = ~rows.is_pad.bool()
    share = real.to(terms.dtype) if weights is None else weights.to(terms.dtype)
    if by_row:  # whole on every cp rank; a row without a trained token is in no count of rows
        share, keep = share / rows.cp_size, real & (rows.row_count() > 0)
    else:
        share, keep = rows.per_token(share), rows.per_token(real)
    terms = terms.where(keep, terms.new_zeros(()))
    summed = (terms * share).sum()
    if not bool(summed.isfinite()):
        bad = ~terms.isfinite()
        raise EngineError(f"{name} is not finite in {row_names(rows, bad if by_row else rows.local_sum(bad) > 0)}")
    return summed


def _refuse_unmasked(name: str, terms: Tensor, mask: Tensor, rows: LossRows) -> None:
    """A term outside the mask would train on a prompt, on an environment's reply or on padding. NaN is not 0 either."""
    stray = (terms != 0) & ~mask
    if bool(stray.any()):
        i, j = (int(index) for index in stray.nonzero()[0])
        row, position = rows.place(i, j)
        found = rows.local_sum(stray) > 0
        raise EngineError(
            f"{name} is {float(terms[i, j]):.4g} at position {position} of {_row_name(rows, row)}, outside response_mask "
            f"(so in {int(found.sum())} of {found.shape[0]} rows): it would train on tokens that the policy did not sample; "
            "return `terms.where(rows.response_mask, 0)`"
        )


def _masked_sum(value: Tensor, mask: Tensor) -> float:
    return float(value.detach().where(mask, value.new_zeros(())).sum(dtype=torch.float64))


def row_names(rows: Any, chosen: Tensor | None = None) -> str:
    """`row 3 (uid 17, traj_uid 1), row 5 (uid 18, traj_uid 0)` of the micro-batch, at most eight."""
    indices = list(range(rows.is_pad.shape[0])) if chosen is None else [int(i) for i in chosen.nonzero().flatten()]
    named = ", ".join(_row_name(rows, i) for i in indices[:8])
    return (named or "their sum") + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")


def _row_name(rows: Any, i: int) -> str:
    known = [f"{key} {int(getattr(rows, key)[i])}" for key in ("uid", "traj_uid") if hasattr(rows, key)]
    return f"row {i}" + (f" ({', '.join(known)})" if known else "")


def mean_metrics(steps: Sequence[tuple[Sums, Counts]], losses: Mapping[str, LossLike]) -> dict[str, float]:
    """Sum over all mini-batches / count over all mini-batches: a loss by its own denominator, the rest by tokens.

    `loss` is the sum of the losses. Sums over ranks and micro-batches, so no cut changes a value.
    """
    means: dict[str, float] = {}
    for key in sorted({key for sums, _ in steps for key in sums}):
        loss = losses.get(key.removesuffix("/loss")) if key.endswith("/loss") else None
        count = sum(counts["tokens"] if loss is None else counted(loss, counts) for _, counts in steps)
        means[key] = sum(sums.get(key, 0.0) for sums, _ in steps) / (count or 1)
    return {"loss": sum(means.get(f"{name}/loss", 0.0) for name in losses), **means}
