"""Policy losses a token: each token has a ratio of its own."""

from __future__ import annotations

from collections.abc import Mapping

from rlflow import Aggregated, Tensor

from ..records import PolicyForward, PpoRows
from .terms import inside, log_ratio

__all__ = ["ppo_clip"]


class ppo_clip(Aggregated[PolicyForward, PpoRows]):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) a token, r = exp(log_probs - old_log_probs).

    Schulman et al. 2017 (arXiv:1707.06347), eq. 7; two clip bounds: Yu et al. 2025, DAPO (arXiv:2503.14476), eq. 10.
    The log-ratio is bounded by ±20 before exp; beyond, a token has no gradient.

    aggregate, constant, row_weight: keywords, see `rlflow.Aggregated`.

        A = 1, r = 1.5, clip_high = 0.2: -min(1.5, 1.2) = -1.2      A = -1, r = 1.5: -min(-1.5, -1.2) = 1.5
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    @property
    def from_forward(self) -> Mapping[str, str]:
        return {"old_log_probs": "log_probs"}

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        ratio = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask).exp()
        advantages = inside(rows.advantages, rows.response_mask)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return self.aggregated(-(ratio * advantages).minimum(clipped * advantages), rows)

    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        """clip_fraction: tokens whose clipped term counts. ppo_kl, approx_kl: KL(old | new) by k1 and k3, nats. ratio: r itself."""
        difference = log_ratio(forward.log_probs, rows.old_log_probs, rows.response_mask).detach()
        ratio, advantages = difference.exp(), inside(rows.advantages, rows.response_mask)
        clipped = (advantages > 0) & (ratio > 1 + self.clip_high) | (advantages < 0) & (ratio < 1 - self.clip_low)
        return {
            "clip_fraction": clipped.to(ratio.dtype),
            "ppo_kl": -difference,
            "approx_kl": ratio - 1 - difference,
            "ratio": inside(ratio, rows.response_mask),
        }
