"""Weights for samples of other weights or another engine."""

from __future__ import annotations

from rlflow import operator

from ..fields import Advantages, OldLogProbs, ResponseMask, RolloutLogProbs

LOG_RATIO_LIMIT = 20.0  # as in the losses: beyond it a ratio is only large


@operator(per="row", corrects=("version", "engine"))
def truncated_importance(
    advantages: Advantages,
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    response_mask: ResponseMask,
    *,
    cap: float = 2.0,
) -> Advantages:
    """Advantages weighed a token by min(cap, π_old / π_rollout): corrects for samples of other weights or another engine.

    Truncated importance sampling: Espeholt et al. 2018, IMPALA (arXiv:1802.01561), the bounded ρ; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training". As the weight is not negative, weighing A is weighing the clipped term.

        old -1.0, rollout -1.5: weight e^0.5 = 1.6487      rollout -3.0: e^2 = 7.39, capped at 2
    """
    mask = response_mask.bool()
    log_ratio = (old_log_probs - rollout_log_probs).where(mask, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return advantages.where(mask, 0.0) * log_ratio.exp().clamp(max=cap)


@operator(per="row", corrects=("version", "engine"))
def anchor_on_rollout(rollout_log_probs: RolloutLogProbs) -> OldLogProbs:
    """Take the sampling policy itself as the anchor of the ratio, instead of recomputed log-probs: says so where it is done."""
    return rollout_log_probs.clone()
