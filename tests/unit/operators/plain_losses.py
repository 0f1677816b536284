"""Each policy loss once more, as its paper writes it: a loop over the trained tokens of one row, in Python, numbers of one element each.

formula(log π, others of the row, options) → a term a token        `average` makes them one number, counting in Python
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Row = dict[str, list[float]]  # field → numbers of the trained tokens of a row
Formula = Callable[..., list[Tensor]]


def clip(x: Any, low: float, high: float) -> Any:
    return min(max(x, low), high)


def log_ratios(log_probs: Sequence[Tensor], row: Row) -> list[Tensor]:
    return [new - old for new, old in zip(log_probs, row["old_log_probs"], strict=True)]


def bounded(x: Tensor) -> Tensor:
    """±20, and constant beyond."""
    return x if -20 <= x <= 20 else torch.tensor(math.copysign(20.0, x.item()), dtype=x.dtype)


def ppo_clip(log_probs: Sequence[Tensor], row: Row, low: float = 0.2, high: float = 0.2, dual: float | None = None) -> list[Tensor]:
    terms = []
    for x, a in zip(log_ratios(log_probs, row), row["advantages"], strict=True):
        r = bounded(x).exp()
        term = -min(r * a, clip(r, 1 - low, 1 + high) * a)
        terms.append(min(term, torch.tensor(-dual * a, dtype=r.dtype)) if dual and a < 0 else term)
    return terms


def cispo(log_probs: Sequence[Tensor], row: Row, low: float = 1.0, high: float = 4.0) -> list[Tensor]:
    ratios = [math.exp(clip(x.item(), -20, 20)) for x in log_ratios(log_probs, row)]
    return [-clip(r, 1 - low, 1 + high) * a * x for r, a, x in zip(ratios, row["advantages"], log_probs, strict=True)]


def sapo(log_probs: Sequence[Tensor], row: Row, tau_pos: float = 1.0, tau_neg: float = 1.05) -> list[Tensor]:
    terms = []
    for x, a in zip(log_ratios(log_probs, row), row["advantages"], strict=True):
        tau = tau_pos if a > 0 else tau_neg
        terms.append(-4 / tau / (1 + (-tau * (bounded(x).exp() - 1)).exp()) * a)
    return terms


def dppo(log_probs: Sequence[Tensor], row: Row, divergence: str = "tv", low: float = 0.2, high: float = 0.2) -> list[Tensor]:
    terms = []
    for new, old, a in zip(log_probs, row["old_log_probs"], row["advantages"], strict=True):
        p, q = math.exp(new.item()), math.exp(old)
        moved = abs(p - q) if divergence == "tv" else q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        left = (a > 0 and p > q and moved > high) or (a < 0 and p < q and moved > low)
        terms.append(0 * new if left else -min(p / q, 20.0) * a * new)
    return terms


def gpg(log_probs: Sequence[Tensor], row: Row) -> list[Tensor]:
    return [-a * x for a, x in zip(row["advantages"], log_probs, strict=True)]


def dro(log_probs: Sequence[Tensor], row: Row, beta: float = 0.1) -> list[Tensor]:
    differences = log_ratios(log_probs, row)
    return [-(a * x - beta / 2 * d * d) for a, x, d in zip(row["advantages"], log_probs, differences, strict=True)]


def gspo(log_probs: Sequence[Tensor], row: Row, low: float = 3e-4, high: float = 4e-4) -> list[Tensor]:
    """Each token has the sequence's ratio with a gradient of its own."""
    s = math.exp(clip(sum(x.item() for x in log_ratios(log_probs, row)) / len(log_probs), -20, 20))
    terms = []
    for x, a in zip(log_probs, row["advantages"], strict=True):
        own = s * x.exp() / math.exp(x.item())
        terms.append(-min(own * a, clip(own, 1 - low, 1 + high) * a))
    return terms


def gmpo(log_probs: Sequence[Tensor], row: Row, low: float = 0.4, high: float = 0.4) -> list[Tensor]:
    clipped = []
    for x, a in zip(log_ratios(log_probs, row), row["advantages"], strict=True):
        clipped.append(
            min(x, torch.tensor(high, dtype=x.dtype)) if a > 0 else max(x, torch.tensor(-low, dtype=x.dtype)) if a < 0 else 0 * x
        )
    rho = bounded(torch.stack(clipped).mean()).exp()
    return [-rho * a for a in row["advantages"]]


def topr(log_probs: Sequence[Tensor], row: Row) -> list[Tensor]:
    total = sum(new.item() - old for new, old in zip(log_probs, row["rollout_log_probs"], strict=True))
    ratio = math.exp(clip(total, -20, 20))
    return [-(min(1.0, ratio) if a < 0 else 1.0) * a * x for a, x in zip(row["advantages"], log_probs, strict=True)]


def average(terms: Sequence[Sequence[Tensor]], aggregate: str, constant: float | None = None) -> Tensor:
    """`terms`: those of the trained tokens, of each row that has one."""
    rows = [torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in row]) for row in terms]
    match aggregate:
        case "token-mean":
            return torch.cat(rows).sum() / sum(len(row) for row in rows)
        case "seq-mean-token-sum":
            return torch.stack([row.sum() for row in rows]).sum() / len(rows)
        case "seq-mean-token-mean":
            return torch.stack([row.sum() / len(row) for row in rows]).sum() / len(rows)
        case "seq-mean-token-sum-norm":
            assert constant is not None
            return torch.stack([row.sum() / constant for row in rows]).sum() / len(rows)
    raise AssertionError(aggregate)
