"""What all losses share: inputs are masked before they are used, log-ratios bounded before exp."""

from __future__ import annotations

from rlflow import Tensor

__all__ = ["LOG_RATIO_LIMIT", "inside", "log_ratio"]

LOG_RATIO_LIMIT = 20.0  # e^20 = 5e8: what is beyond has left float32's use, not its range


def inside(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is True, 0 elsewhere, in value and in gradient."""
    return values.where(mask, values.new_zeros(()))


def log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """log_probs - old_log_probs within ±20, 0 outside the mask; beyond ±20 a token has no gradient."""
    return inside(log_probs - old_log_probs, mask).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
