"""What all losses share: inputs are masked before they are used, log-ratios bounded before exp, and terms that know their slope.

inside      x where the mask is True, else 0
log_ratio   new - old, inside, within ±20
drift       metrics of every loss that has a ratio
sloped      numbers whose gradient is known
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from rlflow import Aggregated, Tensor

from ..records import PolicyForward, PpoRows

__all__ = ["LOG_RATIO_LIMIT", "RatioLoss", "drift", "inside", "log_ratio", "sloped"]

LOG_RATIO_LIMIT = 20.0  # e^20 = 5e8: what is beyond has left float32's use, not its range


class RatioLoss(Aggregated[PolicyForward, PpoRows]):
    """Base of the losses of r = π / π_old: they take `old_log_probs` from the training forward where one optimizer step is made."""

    @property
    def from_forward(self) -> Mapping[str, str]:
        return {"old_log_probs": "log_probs"}


def inside(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is True, 0 elsewhere, in value and in gradient."""
    return values.where(mask.bool(), values.new_zeros(()))


def log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """log_probs - old_log_probs within ±20, 0 outside the mask; beyond ±20 a token has no gradient."""
    return inside(log_probs - old_log_probs, mask).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def drift(difference: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Of a log-ratio: ppo_kl, approx_kl: KL(old | new) by k1 and k3, nats; ratio: r itself."""
    difference = difference.detach()
    ratio = difference.exp()
    return {"ppo_kl": -difference, "approx_kl": difference.expm1() - difference, "ratio": inside(ratio, mask)}


def sloped(x: Tensor, values: Tensor, slope: Tensor) -> Tensor:
    """`values`, whose derivative to `x`, element by element, is `slope`: one node of the graph in place of a chain of them.

    x, values, slope: the same shape; the latter two without gradient. Differentiable once.
    """
    return _sloped().apply(x, values, slope)  # type: ignore[no-any-return]


@functools.cache
def _sloped() -> Any:
    from torch.autograd import Function
    from torch.autograd.function import once_differentiable

    class Sloped(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, values: Tensor, slope: Tensor) -> Tensor:
            ctx.save_for_backward(slope)
            return values

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
            (slope,) = ctx.saved_tensors
            return grad * slope, None, None

    return Sloped
