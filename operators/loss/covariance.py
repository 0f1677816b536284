"""Policy losses that hold back the few tokens of a mini-batch that would take most entropy.

    cov(token) = (A - mean A) · (log π - mean log π)        means over the trained tokens of the mini-batch, on all ranks
    clip_cov   of the tokens whose cov is within bounds, drop some at random
    kl_cov     of the tokens whose cov is largest, penalise the step

Cui et al. 2025, "The entropy mechanism of reinforcement learning for reasoning language models" (arXiv:2505.22617).
Means, ranks and choices are made once for the whole mini-batch (`statistic`), before any term of it. What is drawn, or would be a tie, goes
by a hash of the token's name (uid, traj_uid, leaf, position): neither the cut nor the order of rows changes which tokens it is.
Advantages that are weighed (by importance) enter the covariance weighed, and kl_cov's penalty is not weighed by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlflow import Aggregated, Tensor

from ..options import finite, within
from ..records import CovarianceRows, PolicyForward
from .terms import drift, inside, log_ratio

__all__ = ["clip_cov", "kl_cov"]


class _OfCovariance(Aggregated[PolicyForward, CovarianceRows]):
    @property
    def from_forward(self) -> Mapping[str, str]:
        return {"old_log_probs": "log_probs"}

    def first_pass(self, forward: PolicyForward, rows: CovarianceRows) -> Mapping[str, Tensor]:
        return {"advantages": rows.advantages, "log_probs": forward.log_probs, "name": _name(rows)}

    def metrics(self, forward: PolicyForward, rows: CovarianceRows) -> dict[str, Tensor]:
        """held_fraction: tokens held back. And see `terms.drift`."""
        difference = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask)
        return {"held_fraction": rows.statistics()["held"].to(difference.dtype), **drift(difference, rows.response_mask)}


class clip_cov(_OfCovariance):
    """ppo_clip's term a token, but 0 for max(1, ⌊cov_ratio · tokens⌋) of those with cov_low < cov < cov_high, drawn at random.

    Cui et al. 2025 (arXiv:2505.22617), Clip-Cov; the defaults are the paper's. Tokens that ppo_clip's bounds clip already are not drawn,
    and fewer are if fewer are within the bounds.

        A = 3, -3, 3, -3, log π = -1, -3, -3, -1, ratio 1: means 0 and -2, cov 3, 3, -3, -3
        one of the first two is dropped: its term is 0, and the others are -3 or 3
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    cov_ratio: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0

    def __post_init__(self) -> None:
        within("clip_cov", 0, math.inf, clip_low=self.clip_low, clip_high=self.clip_high)
        within("clip_cov", 0, 1, cov_ratio=self.cov_ratio)
        within("clip_cov", -math.inf, math.inf, cov_low=self.cov_low, cov_high=self.cov_high)

    def first_pass(self, forward: PolicyForward, rows: CovarianceRows) -> Mapping[str, Tensor]:
        _, _, plain, clipped = self._terms(forward, rows)
        return {**super().first_pass(forward, rows), "clipped": clipped > plain}

    def statistic(self, tokens: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        cov = _covariance(tokens)
        drawn = (cov > self.cov_low) & (cov < self.cov_high) & ~tokens["clipped"].bool()
        of_drawn = drawn.nonzero().flatten()
        by_chance = of_drawn[tokens["name"][of_drawn].argsort()]
        return {"held": _chosen(by_chance[: _count(self.cov_ratio, cov)], cov)}

    def __call__(self, forward: PolicyForward, rows: CovarianceRows) -> Tensor:
        _, _, plain, clipped = self._terms(forward, rows)
        return self.aggregated(inside(plain.maximum(clipped), ~rows.statistics()["held"].bool()), rows)

    def _terms(self, forward: PolicyForward, rows: CovarianceRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ratio = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask).exp()
        advantages = inside(rows.advantages, rows.response_mask)
        return ratio, advantages, -ratio * advantages, -ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages


class kl_cov(_OfCovariance):
    """-r A a token, and + kl_coef · |log r| for the max(1, ⌊cov_ratio · tokens⌋) tokens of largest covariance.

    Cui et al. 2025 (arXiv:2505.22617), KL-Cov; the defaults are the paper's for its larger model. |log r| stands for KL(old | new), as in
    the authors' code.

        A = 1, -1, log π = -1, -3, log r = 0.1, 0.2: cov 1, 1; cov_ratio 0.5 takes one, by chance; were it the first:
        -1.1052 + 0.1 = -1.0052, gradient -1.1052 + 1 = -0.1052      the second stays 1.2214, gradient 1.2214
    """

    cov_ratio: float = 2e-4
    kl_coef: float = 1.0

    def __post_init__(self) -> None:
        within("kl_cov", 0, 1, cov_ratio=self.cov_ratio)
        finite("kl_cov", kl_coef=self.kl_coef)

    def statistic(self, tokens: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        cov = _covariance(tokens)
        by_name = tokens["name"].argsort()
        largest = by_name[cov[by_name].argsort(descending=True, stable=True)]
        return {"held": _chosen(largest[: _count(self.cov_ratio, cov)], cov)}

    def __call__(self, forward: PolicyForward, rows: CovarianceRows) -> Tensor:
        difference = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask)
        penalty = self.kl_coef * inside(difference.abs(), rows.statistics()["held"])
        return self.aggregated(penalty - difference.exp() * inside(rows.advantages, rows.response_mask), rows)


def _covariance(tokens: Mapping[str, Tensor]) -> Tensor:
    """f64[N]. The means are summed in an order of their own, so that the tokens' order does not even round them otherwise."""
    advantages, log_probs = tokens["advantages"].double(), tokens["log_probs"].double()
    return (advantages - advantages.sort().values.mean()) * (log_probs - log_probs.sort().values.mean())


def _count(share: float, cov: Tensor) -> int:
    return max(1, int(share * cov.shape[0]))


def _chosen(which: Tensor, of: Tensor) -> Tensor:
    """f64[N]: 1 at the indices `which`, else 0."""
    return of.new_zeros(of.shape).index_fill(0, which, 1.0)


# --- names of tokens ----------------------------------------------------------------------------------------------------------------
def _name(rows: CovarianceRows) -> Tensor:
    """i64, tokens: a hash of uid, traj_uid, leaf and position, that looks drawn."""
    of_row = _mixed(_mixed(_mixed(rows.uid.long()) + rows.traj_uid) + rows.leaf)
    return _mixed(rows.per_token(of_row) + rows.positions())


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): i64 → i64, one to one, products modulo 2^64."""
    x = x + -0x61C8864680B583EB
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits of the unsigned number: `>>` of torch repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
