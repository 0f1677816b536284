"""Estimators that compare the trajectories of a prompt by their scores: one number a trajectory, on all its trained tokens.

    grpo         (s - μ) / (σ + ε)          σ on or off; μ of all or of the others
    rloo         s - mean of the others
    opo          s - mean weighed by length
    gpg          α (s - μ)                  α makes up for rows that teach nothing
    grpo_passk   the best: (s₁ - s₂) / (σ + ε); all others 0
    maxrl        (s - μ) / (μ + ε)

s: the score of a row, μ and σ: mean and sample deviation (n - 1) over the trajectories of its uid. There is no value function, so
`returns` repeat the advantages. The rules for a trajectory alone, equal scores, rows without a trained token and leaves: __init__.py.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from rlflow import operator
from rlflow.data.dtypes import Array
from rlflow.errors import UsageError

from ..fields import ResponseMask, TokenRewards, TrajUid, Uid
from ..options import within
from ..records import Advantage
from .groups import Groups, nonzero


@operator(per="group", least_group=2, ragged=True)
def grpo(
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    *,
    traj_uid: TrajUid | None = None,
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
    leave_one_out: bool = False,
) -> Advantage:
    """(s - μ) / (σ + ε) of its group; `scale_by_std=False`: s - μ. `leave_one_out`: μ is of the other trajectories, σ stays that of all.

    Shao et al. 2024 (arXiv:2402.03300), section 4.1.2; without σ: Liu et al. 2025, Dr. GRPO (arXiv:2503.20783).

        one uid, scores 1, 0, 0, 1: μ = 0.5, σ = 0.57735, advantages ±0.866024      leave_one_out: ±1.154699
    """
    within("grpo", 0, math.inf, epsilon=epsilon)
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    centred = groups.scores - (groups.mean_of_others() if leave_one_out else groups.mean())
    return groups.advantage(centred / nonzero(groups.deviation() + epsilon) if scale_by_std else centred)


@operator(per="group", least_group=2, ragged=True)
def rloo(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None = None) -> Advantage:
    """s minus the mean score of the *other* trajectories of its group.

    Kool et al. 2019; Ahmadian et al. 2024 (arXiv:2402.14740), eq. 9.

        one uid, scores 1, 0, 0: others' means 0, 0.5, 0.5, advantages 1, -0.5, -0.5
    """
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    return groups.advantage(groups.scores - groups.mean_of_others())


@operator(per="group", least_group=2, ragged=True)
def opo(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None = None) -> Advantage:
    """s - Σ length · s / Σ length over its group: the baseline of least variance where a gradient's norm grows with its length.

    Hao et al. 2025 (arXiv:2505.23585), eq. 8. length: trained tokens of a trajectory, over all its leaves.

        one uid, scores 1, 0 of 3 and 1 tokens: baseline 0.75, advantages 0.25, -0.75
    """
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    length = np.bincount(groups.trajectory, weights=groups.tokens.counts)[groups.trajectory]
    baseline = groups.total(length * groups.scores) / np.maximum(groups.total(length), 1)
    return groups.advantage(groups.scores - baseline[groups.group])


@operator(per="batch", least_group=2, ragged=True)
def gpg(
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    *,
    traj_uid: TrajUid | None = None,
    counted: Literal["scored", "comparable"] = "scored",
) -> Advantage:
    """α (s - μ), α = trajectories of the batch / those that count: it makes up for those that teach nothing.

    Chu et al. 2025, GPG (arXiv:2504.02546), section 3.2, with F_norm = 1. counted, those with: "scored", a score other than 0, as the
    authors' code in verl has it; "comparable", a group whose scores differ, as the paper says. With none α is 1. Trajectories without
    a trained token are no part of the batch.

        uid a: scores 1, 0, uid b: 0, 0: α = 4 / 1, advantages 2, -2, 0, 0      counted="comparable": α = 4 / 2, advantages 1, -1, 0, 0
    """
    if counted not in ("scored", "comparable"):
        raise UsageError(f"gpg: counted is {counted!r}; use scored, comparable")
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    counts = groups.own(groups.scores) != 0 if counted == "scored" else groups.comparable()
    alpha = groups.weight.sum() / ((groups.weight * counts).sum() or groups.weight.sum() or 1.0)
    return groups.advantage(alpha * (groups.scores - groups.mean()))


@operator(per="group", least_group=2, ragged=True)
def grpo_passk(
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    *,
    traj_uid: TrajUid | None = None,
    scale_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Advantage:
    """(s₁ - s₂) / (σ + ε) for the best trajectory of its group, s₁ and s₂ being its two best scores; 0 for all others, and for a tie.

    Tang et al. 2025 (arXiv:2503.19595): leave-one-out of the maximum, which is what pass@k rewards. The leaves of a trajectory share
    its score, their mean. `scale_by_std=False`: s₁ - s₂.

        one uid, scores 3, 1, 2: s₁ - s₂ = 1, σ = 1, advantages 1, 0, 0
    """
    within("grpo_passk", 0, math.inf, epsilon=epsilon)
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    lead = _lead(groups)
    return groups.advantage(lead / nonzero(groups.deviation() + epsilon) if scale_by_std else lead)


@operator(per="group", least_group=2, ragged=True)
def maxrl(
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    *,
    traj_uid: TrajUid | None = None,
    epsilon: float = 1e-6,
) -> Advantage:
    """(s - μ) / (μ + ε) of its group: with scores 0 and 1, whose mean is the pass rate, a gradient of log pass rate.

    Tajwar et al. 2026 (arXiv:2602.02710). Scores are meant to be successes, 0 or 1: where the mean is
    negative the sign of the advantages turns, as the formula says.

        one uid, scores 1, 0, 0, 0: μ = 0.25, advantages 3, -1, -1, -1 (but for ε)
    """
    within("maxrl", 0, math.inf, epsilon=epsilon)
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    mean = groups.mean()
    return groups.advantage((groups.scores - mean) / nonzero(mean + epsilon))


def _lead(groups: Groups) -> Array:
    """f64[B]: how far the best trajectory of a group is ahead of the next best; 0 for all others."""
    own = groups.own(groups.scores)
    order = np.lexsort((groups.trajectory, own, groups.group))[::-1]  # the last row of a group first: the best, its leaves together
    order = order[groups.weight[order] > 0]
    first = np.unique(groups.trajectory[order], return_index=True)[1]
    order = order[np.sort(first)]  # a row a trajectory
    group = groups.group[order]
    best = np.flatnonzero(np.diff(group, prepend=-1))
    best = best[np.append(group[1:], -1)[best] == group[best]]  # of groups with a second one
    lead = np.zeros(groups.trajectory.max(initial=-1) + 1)
    lead[groups.trajectory[order[best]]] = own[order[best]] - own[order[best + 1]]
    return np.asarray(lead[groups.trajectory])
