"""Policy losses a sequence: the tokens of a row share one ratio. Sums over a row are those of the row view, so no cut changes them.

    gspo    s = exp(mean of log r)                clipped as ppo_clip's; a gradient a token
    gmpo    ρ = exp(mean of the clipped log r)    clipped a token, in the logarithm; never as a whole
    topr    w = min(1, Π r) where A < 0           REINFORCE for what went well, truncated importance for what did not

A row whose mask is all False has ratio 1 and no term. To weigh A (by importance; weights are not negative) is to weigh the term.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY

from rlflow import Aggregate, Aggregated, Difference, Tensor

from ..options import within
from ..records import PolicyForward, PpoRows, ToprRows
from .terms import LOG_RATIO_LIMIT, RatioLoss, drift, inside, log_ratio

__all__ = ["gmpo", "gspo", "topr"]


def _bounded(x: Tensor) -> Tensor:
    return x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


class gspo(RatioLoss):
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) a token, s = exp(mean over its row of log r): every token of a row alike.

    Zheng et al. 2025, Group Sequence Policy Optimization (arXiv:2507.18071), in its form a token, GSPO-token:
    s_t = sg(s) · π_t / sg(π_t), so that advantages may differ within a row; where they do not, the gradient is that of the form a sequence.
    The default bounds are the paper's: a mean over a row moves far less than one token. By default the mean over rows of the
    mean over their tokens, as in the paper. The mean log-ratio is bounded by ±20 (others: by 10 from above); beyond there is no gradient.

        a row with log r = 0.3, 0.1: s = e^0.2 = 1.2214, A = 1: -1.0004, no gradient      A = -1: 1.2214, gradient 1.2214 a token
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    _: KW_ONLY
    aggregate: Aggregate = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        within("gspo", 0, math.inf, clip_low=self.clip_low, clip_high=self.clip_high)

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        ratio = self._log_ratio(forward, rows).exp()
        advantages = inside(rows.advantages, rows.response_mask)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return self.aggregated(-(ratio * advantages).minimum(clipped * advantages), rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """clip_fraction: tokens whose clipped term counts. sequence_ratio: s. And, a token, see `terms.drift`."""
        ratio = inside(self._log_ratio(forward, rows).detach().exp(), rows.response_mask)
        advantages = inside(rows.advantages, rows.response_mask)
        clipped = (advantages > 0) & (ratio > 1 + self.clip_high) | (advantages < 0) & (ratio < 1 - self.clip_low)
        found = drift(log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask), rows.response_mask)
        return {"clip_fraction": clipped.to(ratio.dtype), "sequence_ratio": ratio, **found}

    def _log_ratio(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        """log s, each token with the gradient of its own log-prob."""
        log_probs = inside(forward.log_probs, rows.response_mask)
        mean = rows.row_mean(log_probs.detach() - rows.old_log_probs)
        return _bounded(rows.per_token(mean) + (log_probs - log_probs.detach()))


class gmpo(RatioLoss):
    """-ρ A a token, ρ = exp(mean over its row of log r, clipped a token by [-clip_low, clip_high] on the side that A pushes to).

    Zhao et al. 2025, Geometric-Mean Policy Optimization (arXiv:2507.20673); the bounds are of the *logarithm*, the defaults the
    paper's, (e^-0.4, e^0.4). By default the mean over rows of the mean over their tokens: -ρ · (mean of A), the paper's. Other aggregations
    are what they say (others ignore the option). A token with A = 0 adds log r = 0 to the mean. The mean is bounded by ±20 before exp.

        A = 1, log r = 0.6, -0.2, clip_high = 0.4: ρ = e^((0.4 - 0.2) / 2) = 1.1052, -1.1052 a token; gradient of the mean: 0, -0.5526
    """

    clip_low: float = 0.4
    clip_high: float = 0.4
    _: KW_ONLY
    aggregate: Aggregate = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        within("gmpo", 0, math.inf, clip_low=self.clip_low, clip_high=self.clip_high)

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        difference, advantages = self._inputs(forward, rows)
        sign = advantages.sign()
        clipped = (difference * sign).minimum(difference.clamp(-self.clip_low, self.clip_high) * sign) * sign
        ratio = _bounded(rows.row_mean(clipped)).exp()
        return self.aggregated(-rows.per_token(ratio) * advantages, rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """clip_fraction: tokens whose own log-ratio is clipped. And see `terms.drift`."""
        difference, advantages = self._inputs(forward, rows)
        clipped = (advantages > 0) & (difference > self.clip_high) | (advantages < 0) & (difference < -self.clip_low)
        found = drift(_bounded(difference), rows.response_mask)
        return {"clip_fraction": clipped.to(difference.dtype), **found}

    def _inputs(self, forward: PolicyForward, rows: PpoRows) -> tuple[Tensor, Tensor]:
        return inside(forward.log_probs - rows.old_log_probs, rows.response_mask), inside(rows.advantages, rows.response_mask)


class topr(Aggregated[PolicyForward, ToprRows]):
    """-w A log π a token: w = 1 where A > 0, min(1, π(row) / π_rollout(row)) where A < 0, without gradient.

    Le Roux et al. 2025, Tapered Off-Policy REINFORCE (arXiv:2503.14286): what went well is imitated whoever sampled it; what did
    not is pushed away only as far as the policy would still say it. The ratio is that of the row's trained tokens together, its
    logarithm bounded by ±20; `rollout_log_probs` are those of the policy that sampled. By default the mean over rows of the sum over their
    tokens, as in the paper.

        a row with log π = -1, -2, log π_rollout = -0.5, -1.5: w = e^-1 = 0.3679; A = -1: -0.3679, -0.7358      A = 1: 1, 2
    """

    _: KW_ONLY
    aggregate: Aggregate = "seq-mean-token-sum"

    @property
    def corrects(self) -> tuple[Difference, ...]:
        return ("version", "engine")

    def __call__(self, forward: PolicyForward, rows: ToprRows) -> Tensor:
        advantages = inside(rows.advantages, rows.response_mask)
        weight = self._ratio(forward, rows).clamp(max=1).where(advantages < 0, 1.0)
        return self.aggregated(-weight * advantages * inside(forward.log_probs, rows.response_mask), rows)

    def metrics(self, forward: PolicyForward, rows: ToprRows) -> dict[str, Tensor]:
        """sequence_ratio: π(row) / π_rollout(row). tapered_fraction: tokens whose weight is below 1. rollout_kl: log π_rollout - log π."""
        ratio, advantages = self._ratio(forward, rows), inside(rows.advantages, rows.response_mask)
        difference = log_ratio(forward.log_probs.detach(), rows.rollout_log_probs, rows.response_mask)
        tapered = (advantages < 0) & (ratio < 1)
        return {"sequence_ratio": inside(ratio, rows.response_mask), "tapered_fraction": tapered.to(ratio.dtype), "rollout_kl": -difference}

    def _ratio(self, forward: PolicyForward, rows: ToprRows) -> Tensor:
        return rows.per_token(_bounded(rows.row_sum(forward.log_probs.detach() - rows.rollout_log_probs)).exp())
