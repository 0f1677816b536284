"""The KL divergence to a reference, from the sampled tokens alone: estimators, and the penalty in the loss.

With d = log π_ref - log π of the sampled token, each an estimate of KL(π | π_ref) in nats on tokens of π:

    k1 (kl)              -d                unbiased; its gradient has mean 0: as a loss it does nothing but add noise
    abs                  |d|               biased
    k2 (mse)             d² / 2            biased; its gradient is that of the KL divergence, unbiased
    k3 (low_var_kl)      e^d - 1 - d       unbiased, never negative; its gradient is that of KL(π_ref | π)

Schulman 2020, "Approximating KL divergence"; of the gradients: Tang and Munos 2025 (arXiv:2506.09477), Liu et al. 2025
(arXiv:2510.01555). straight_through: the estimator's value with the gradient of k2.
No value is cut: where others bound k3, or every estimator, by ±10, a token that has left the reference would lose its gradient.
"""

from __future__ import annotations

import math
from typing import Literal

from rlflow import Aggregated, Tensor
from rlflow.errors import UsageError

from ..options import finite, within
from ..records import KlRows, PolicyForward
from .terms import LOG_RATIO_LIMIT, inside

__all__ = ["ESTIMATORS", "KlEstimator", "kl_estimate", "kl_penalty", "refuse_estimator"]

KlEstimator = Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl"]
ESTIMATORS = ("k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl")


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, estimator: KlEstimator, straight_through: bool) -> Tensor:
    """KL(π | π_ref) a token by one of the estimators above, nats; 0 outside the mask.

    log π = -1, log π_ref = -1.5, d = -0.5: k1 0.5, abs 0.5, k2 0.125, k3 e^-0.5 - 0.5 = 0.1065
    """
    difference = inside(ref_log_probs - log_probs, mask)
    if straight_through:
        k2 = 0.5 * difference**2
        return _value(difference.detach(), estimator) + (k2 - k2.detach())
    return _value(difference, estimator)


def _value(difference: Tensor, estimator: KlEstimator) -> Tensor:
    match estimator:
        case "k1" | "kl":
            return -difference
        case "abs":
            return difference.abs()
        case "k2" | "mse":
            return 0.5 * difference**2
        case "k3" | "low_var_kl":
            bounded = difference.clamp(max=LOG_RATIO_LIMIT)
            slope = bounded.expm1()  # e^d - 1 - d by exp is rounding alone, of either sign, where the policies are close
            return slope - bounded + (difference - bounded) * slope


def refuse_estimator(of: str, estimator: str) -> None:
    """Raise UsageError for an estimator that there is not."""
    if estimator not in ESTIMATORS:
        raise UsageError(f"{of}: estimator is {estimator!r}; use {', '.join(ESTIMATORS)}")


class kl_penalty(Aggregated[PolicyForward, KlRows]):
    """beta · KL(π | π_ref) a token, by k3 unless told otherwise. With beta = 0 it reads nothing; UsageError for one below.

    estimator, straight_through: see the table of this file. With k3, beyond d = 20 exp goes on as its tangent, so that the gradient stays
    finite and keeps its direction (towards the reference).

        beta = 0.1, log π = -1, log π_ref = -1.5: 0.1 · 0.1065 = 0.01065, gradient 0.1 · (1 - e^-0.5) = 0.03935
        straight_through: 0.01065 too, gradient 0.1 · 0.5 = 0.05
    """

    beta: float
    estimator: KlEstimator = "k3"
    straight_through: bool = False

    def __post_init__(self) -> None:
        within("kl_penalty", 0, math.inf, beta=self.beta)
        finite("kl_penalty", beta=self.beta)
        refuse_estimator("kl_penalty", self.estimator)

    @property
    def active(self) -> bool:
        return self.beta > 0

    def __call__(self, forward: PolicyForward, rows: KlRows) -> Tensor:
        return self.aggregated(self.beta * self._estimate(forward, rows), rows)

    def metrics(self, forward: PolicyForward, rows: KlRows) -> dict[str, Tensor]:
        """kl: the estimate itself, nats, without beta."""
        return {"kl": self._estimate(forward, rows).detach()}

    def _estimate(self, forward: PolicyForward, rows: KlRows) -> Tensor:
        return kl_estimate(forward.log_probs, rows.ref_log_probs, rows.response_mask, self.estimator, self.straight_through)
