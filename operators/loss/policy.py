"""Policy losses a token: each token has a ratio of its own, r = exp(log_probs - old_log_probs).

    ppo_clip    -min(r A, clip(r) A)                  gradient until r leaves the clip range the way A pushes
    cispo       -sg(clip(r)) A log π                  the weight is clipped, the gradient never stops
    sapo        -4/τ sigmoid(τ (r - 1)) A             the gradient fades smoothly
    dppo        -sg(min(r, cap)) A log π · keep       stops where the probability itself has moved too far
    gpg         -A log π                              no ratio
    dro         -(A log π - β/2 (log r)²)             a quadratic pull to the old policy

sg: stop-gradient. The weights of an importance correction are not negative: weighing A by them weighs the term of each of these,
except for the second half of dro's, which has no A.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Literal

from rlflow import Aggregate, Aggregated, Tensor
from rlflow.errors import UsageError

from ..options import above, within
from ..records import PolicyForward, PolicyRows, PpoRows
from .terms import LOG_RATIO_LIMIT, RatioLoss, drift, inside, log_ratio, sloped

__all__ = ["cispo", "dppo", "dro", "gpg", "ppo_clip", "sapo"]


class ppo_clip(RatioLoss):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) a token, r = exp(log_probs - old_log_probs).

    Schulman et al. 2017 (arXiv:1707.06347), eq. 7; two clip bounds: Yu et al. 2025, DAPO (arXiv:2503.14476), eq. 10.
    dual_clip: with A < 0 the term is at most dual_clip · |A|: Ye et al. 2020 (arXiv:1912.09729); None, the default, for no such
    bound (some trainers always have one of 3). Raises UsageError for one that is not above 1, and for bounds below 0.
    The log-ratio is bounded by ±20 before exp; beyond, a token has no gradient.

    aggregate, constant, row_weight: keywords, see `rlflow.Aggregated`.

        A = 1, r = 1.5, clip_high = 0.2: -min(1.5, 1.2) = -1.2      A = -1, r = 1.5: -min(-1.5, -1.2) = 1.5
        A = -1, r = 5: 5, with dual_clip = 3: 3, and no gradient
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        within("ppo_clip", 0, math.inf, clip_low=self.clip_low, clip_high=self.clip_high)
        if self.dual_clip is not None:  # it bounds the ratio of negative advantages
            above("ppo_clip", 1, dual_clip=self.dual_clip)

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        terms, slope = self._terms(forward.log_probs.detach(), rows)
        return self.aggregated(sloped(forward.log_probs, terms, slope), rows, masked=True)

    def _terms(self, log_probs: Tensor, rows: PpoRows) -> tuple[Tensor, Tensor]:
        """Values and slopes, in few passes. Nothing here has a graph, so junk may go through exp: what it makes is dropped at the end."""
        difference = log_probs - rows.old_log_probs
        ratio = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp_()
        pushed_down = ratio.clamp(min=1 - self.clip_low, max=self.dual_clip)
        clipped = pushed_down.where(rows.advantages < 0, ratio.clamp(max=1 + self.clip_high))
        counts = (clipped == ratio).logical_and_(difference.abs_() <= LOG_RATIO_LIMIT)
        terms = inside(clipped.mul_(rows.advantages).neg_(), rows.response_mask)
        return terms, inside(terms, counts)  # d(-rA) / d log π = -rA

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """clip_fraction: tokens whose clipped term counts; dual_clip_fraction: those bounded by dual_clip. And see `terms.drift`."""
        difference = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask)
        found = drift(difference, rows.response_mask)
        ratio, advantages = difference.detach().exp(), inside(rows.advantages, rows.response_mask)
        clipped = (advantages > 0) & (ratio > 1 + self.clip_high) | (advantages < 0) & (ratio < 1 - self.clip_low)
        if self.dual_clip is not None:
            found["dual_clip_fraction"] = ((advantages < 0) & (ratio > self.dual_clip)).to(ratio.dtype)
        return {"clip_fraction": clipped.to(ratio.dtype), **found}


class cispo(RatioLoss):
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log π a token: a clipped token keeps its gradient, with a bounded weight.

    MiniMax 2025, MiniMax-M1 (arXiv:2506.13585). The paper has no lower bound and does not tell its upper one; the defaults
    here are no lower bound (1 - 1 = 0) and a weight of at most 5 (Khatri et al. 2025, ScaleRL, arXiv:2510.13786).

        A = 2, log π = -1.5, log π_old = -1: r = 0.6065, term 0.6065 · 2 · 1.5 = 1.8196, gradient -0.6065 · 2 = -1.2131
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        within("cispo", 0, math.inf, clip_low=self.clip_low, clip_high=self.clip_high)

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        weight = log_ratio(forward.log_probs.detach(), rows.old_log_probs, rows.response_mask).exp_().clamp(*self._bounds)
        return self.aggregated(-weight * inside(rows.advantages, rows.response_mask) * inside(forward.log_probs, rows.response_mask), rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """clip_fraction: tokens whose weight is clipped. And see `terms.drift`."""
        found = drift(log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask), rows.response_mask)
        clipped = inside(found["ratio"] != found["ratio"].clamp(*self._bounds), rows.response_mask)
        return {"clip_fraction": clipped.to(found["ratio"].dtype), **found}

    @property
    def _bounds(self) -> tuple[float, float]:
        return 1 - self.clip_low, 1 + self.clip_high


class sapo(RatioLoss):
    """-(4 / τ) sigmoid(τ (r - 1)) A a token; τ is tau_pos where A > 0, else tau_neg.

    Gao et al. 2025, Soft Adaptive Policy Optimization (arXiv:2511.20347). The gate's slope is 1 at r = 1 and fades on both
    sides, for negative advantages sooner. By default the mean over rows of the mean over their tokens, as in the paper.

        A = 1, τ = 1, r = 1: -4 · 0.5 = -2, gradient -1      r = 2: -4 · 0.7311 = -2.9242, gradient -4 · 0.1966 · 2 = -1.5729
    """

    tau_pos: float = 1.0
    tau_neg: float = 1.05
    _: KW_ONLY
    aggregate: Aggregate = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        above("sapo", 0, tau_pos=self.tau_pos, tau_neg=self.tau_neg)

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        ratio = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask).exp()
        advantages = inside(rows.advantages, rows.response_mask)
        tau = ratio.new_full((), self.tau_pos).where(advantages > 0, self.tau_neg)
        return self.aggregated(-((ratio - 1) * tau).sigmoid() * (4 / tau) * advantages, rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """See `terms.drift`."""
        return drift(log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask), rows.response_mask)


class dppo(RatioLoss):
    """-sg(min(r, ratio_cap)) A log π for tokens inside the trust region, 0 for those that have left it the way A pushes.

    Qi et al. 2026, Divergence Proximal Policy Optimization (arXiv:2602.04879), eq. 13 and 14: the divergence is that of "this token or
    another", from its probabilities p (new) and q (old). "tv": |p - q|; "kl": q log(q / p) + (1 - q) log((1 - q) / (1 - p)), nats.
    A token with A > 0 is dropped where p > q by more than high, one with A < 0 where p < q by more than low.

    low, high: bounds of the divergence; the authors advise 0.2 for "tv", 0.05 for "kl". ratio_cap: truncated importance sampling
    (section 5.4 of the paper).

        A = 1, p = 0.5, q = 0.1: r = 5, tv 0.4 > 0.2: dropped      p = 0.05, q = 0.01: r = 5, tv 0.04: -5 · log 0.05 = 14.9787
    """

    divergence: Literal["tv", "kl"] = "tv"
    low: float = 0.2
    high: float = 0.2
    ratio_cap: float = 20.0

    def __post_init__(self) -> None:
        if self.divergence not in ("tv", "kl"):
            raise UsageError(f"dppo: divergence is {self.divergence!r}; use tv, kl")
        within("dppo", 0, math.inf, low=self.low, high=self.high)
        above("dppo", 0, ratio_cap=self.ratio_cap)

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        weight = log_ratio(forward.log_probs.detach(), rows.old_log_probs, rows.response_mask).exp_().clamp(max=self.ratio_cap)
        weight = weight * inside(rows.advantages, rows.response_mask) * self._keep(forward, rows)
        return self.aggregated(-weight * inside(forward.log_probs, rows.response_mask), rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """clip_fraction: tokens dropped. And see `terms.drift`."""
        found = drift(log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask), rows.response_mask)
        return {"clip_fraction": (~self._keep(forward, rows)).to(found["ratio"].dtype), **found}

    def _keep(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        """True where a token is trained; True outside the mask."""
        new, old = (inside(x, rows.response_mask) for x in (forward.log_probs.detach(), rows.old_log_probs))
        p, q, advantages = new.exp(), old.exp(), inside(rows.advantages, rows.response_mask)
        moved = (p - q).abs() if self.divergence == "tv" else _binary_kl(old, new, q, p)
        return ~((advantages > 0) & (p > q) & (moved > self.high) | (advantages < 0) & (p < q) & (moved > self.low))


def _binary_kl(log_q: Tensor, log_p: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """KL(q | p) of "this token or another", nats; finite where rounding makes a probability 1, or more."""
    other_q, other_p = ((1 - x).clamp(min=0) + 1e-8 for x in (q, p))
    return q * (log_q - log_p) + (1 - q) * (other_q / other_p).log()


class gpg(Aggregated[PolicyForward, PolicyRows]):
    """-A log π a token: the policy gradient itself, for samples of the very policy in training.

    Chu et al. 2025, GPG (arXiv:2504.02546); Williams 1992. It reads no old log-probs, so nothing bounds how far one batch moves.

        A = 2, log π = -1.5: 3, gradient -2
    """

    def __call__(self, forward: PolicyForward, rows: PolicyRows) -> Tensor:
        return self.aggregated(-inside(rows.advantages, rows.response_mask) * inside(forward.log_probs, rows.response_mask), rows)


class dro(RatioLoss):
    """-(A log π - β/2 (log r)²) a token.

    The policy half of Richemond et al. 2024, Direct Reward Optimisation (arXiv:2405.19107), with A = reward - value. There is no
    exp, so the log-ratio is not bounded. Weighing A weighs the first half only: correct for importance elsewhere.

        A = 2, log π = -1.5, log π_old = -1, β = 0.1: 3 + 0.05 · 0.25 = 3.0125, gradient -2 + 0.1 · -0.5 = -2.05
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        above("dro", 0, beta=self.beta)  # without a pull to the old policy the loss has no bottom

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        new, old, advantages = (inside(x, rows.response_mask) for x in (forward.log_probs, rows.old_log_probs, rows.advantages))
        return self.aggregated((new - old) ** 2 * (0.5 * self.beta) - new * advantages, rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """See `terms.drift`."""
        return drift(log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask), rows.response_mask)
