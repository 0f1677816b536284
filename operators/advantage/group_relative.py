"""Estimators that compare the trajectories of a prompt: grpo, rloo."""

from __future__ import annotations

from rlflow import operator

from ..fields import ResponseMask, TokenRewards, TrajUid, Uid
from ..records import Advantage
from .groups import Groups, spread


@operator(per="group", least_group=2)
def grpo(
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    *,
    traj_uid: TrajUid | None = None,
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Advantage:
    """(s - μ) / (σ + ε) of its group, on the response tokens; `scale_by_std=False`: s - μ.

    Shao et al. 2024 (arXiv:2402.03300), section 4.1.2; without σ: Liu et al. 2025, Dr. GRPO (arXiv:2503.20783).
    σ is that of a sample (n - 1). There is no value function, so `returns` repeat the advantages.

        one uid, scores 1, 0, 0, 1: μ = 0.5, σ = 0.57735, advantages ±0.866024
    """
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    centred = groups.scores - groups.mean()
    scaled = centred / (groups.deviation(centred) + epsilon) if scale_by_std else centred
    return spread(scaled.where(groups.comparable(), 0.0), response_mask)


@operator(per="group", least_group=2)
def rloo(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None = None) -> Advantage:
    """s minus the mean score of the *other* trajectories of its group, on the response tokens.

    Kool et al. 2019; Ahmadian et al. 2024 (arXiv:2402.14740), eq. 9. There is no value function, so `returns` repeat the advantages.

        one uid, scores 1, 0, 0: others' means 0, 0.5, 0.5, advantages 1, -0.5, -0.5
    """
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    return spread((groups.scores - groups.mean_of_others()).where(groups.comparable(), 0.0), response_mask)
