"""Estimators that look along a row: returns and what a value function says of them. t + 1 is the next *trained* token of the row.

reinforce                      G_t = Σ_k γ^k r_{t+k}
reinforce_plus_plus            G_t, whitened over the batch
reinforce_plus_plus_baseline   s - μ of the group, whitened over the batch
remax                          G_t - the reward of the greedy answer
gae                            Σ_k (γλ)^k δ_{t+k}, whitened over the batch
"""

from __future__ import annotations

import numpy as np

from rlflow import operator
from rlflow.data.dtypes import Array

from ..fields import ResponseMask, RewardBaselines, TokenRewards, TrajUid, Uid, Values
from ..options import within
from ..ragged import Tokens, per_row, refuse_not_finite
from ..records import Advantage
from .groups import Groups
from .scan import suffix_sums
from .whitening import whitened


@operator(per="row", ragged=True)
def reinforce(token_level_rewards: TokenRewards, response_mask: ResponseMask, *, gamma: float = 1.0) -> Advantage:
    """G_t = Σ_k γ^k r_{t+k}, without a baseline: advantages and returns are the same.

    Williams 1992, REINFORCE. A trajectory is not compared with any other, so one that is alone gets its own return.

        γ = 0.5, r = 0, 0, 1, all trained: 0.25, 0.5, 1
    """
    within("reinforce", 0, 1, gamma=gamma)
    tokens = Tokens.of(response_mask)
    returns = _returns(tokens, tokens.finite("token_level_rewards", token_level_rewards), gamma)
    return Advantage(advantages=tokens.write(returns), returns=tokens.write(returns))


@operator(per="batch", ragged=True)
def reinforce_plus_plus(token_level_rewards: TokenRewards, response_mask: ResponseMask, *, gamma: float = 1.0) -> Advantage:
    """G_t = Σ_k γ^k r_{t+k}, whitened: mean 0 and variance 1 (n - 1) over all trained tokens of the batch. `returns`: G_t.

    Hu 2025, REINFORCE++ (arXiv:2501.03262), eq. 6 and 7. Returns carry through tokens that are not trained (a tool's, a user's).

        γ = 1, rewards 0, 1 | 0, 3: returns 1, 1 | 3, 3, mean 2, σ 1.1547: advantages -0.866025 twice, 0.866025 twice
    """
    within("reinforce_plus_plus", 0, 1, gamma=gamma)
    tokens = Tokens.of(response_mask)
    returns = _returns(tokens, tokens.finite("token_level_rewards", token_level_rewards), gamma)
    return Advantage(advantages=tokens.write(whitened(returns)), returns=tokens.write(returns))


@operator(per="batch", least_group=2, ragged=True)
def reinforce_plus_plus_baseline(
    token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None = None
) -> Advantage:
    """s - μ of its group on each trained token, whitened over those of the batch. `returns` repeat the advantages.

    Hu 2025, REINFORCE++-baseline (arXiv:2501.03262), section 3.3. A trajectory alone has no baseline: it takes no part in the whitening
    and gets 0. A group whose scores are equal has one, s - μ is exactly 0, and takes part.

        uid a: scores 1, 0, uid b: 3, 1, a token each: ±0.5, ±1, advantages ±0.547723, ±1.095445
    """
    groups = Groups.find(token_level_rewards, response_mask, uid, traj_uid)
    compared = groups.members[groups.group] > 1
    centred = np.where(groups.comparable(), groups.scores - groups.mean(), 0.0)
    x = groups.tokens.each(centred.astype(np.float32))
    inside = groups.tokens.each(compared)
    x[inside] = whitened(x[inside])
    return Advantage(advantages=groups.tokens.write(x), returns=groups.tokens.write(x))


@operator(per="row", ragged=True)
def remax(token_level_rewards: TokenRewards, reward_baselines: RewardBaselines, response_mask: ResponseMask) -> Advantage:
    """G_t = Σ_k r_{t+k} minus what the greedy answer to the same prompt was rewarded. `returns`: G_t.

    Li et al. 2023, ReMax (arXiv:2310.10505), algorithm 1. reward_baselines: f32[B].

        r = 0, 1, baseline 0.75, both trained: advantages 0.25, 0.25, returns 1, 1
    """
    tokens = Tokens.of(response_mask)
    returns = _returns(tokens, tokens.finite("token_level_rewards", token_level_rewards), 1.0)
    baseline = np.where(tokens.counts > 0, per_row("reward_baselines", reward_baselines, tokens.rows), 0.0)
    refuse_not_finite("reward_baselines", baseline)
    return Advantage(advantages=tokens.write(returns - tokens.each(baseline)), returns=tokens.write(returns))


@operator(per="batch", ragged=True)
def gae(
    token_level_rewards: TokenRewards,
    values: Values,
    response_mask: ResponseMask,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
) -> Advantage:
    """Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} - V_t, over a row's own trained tokens; V is 0 after the last.

    Schulman et al. 2016 (arXiv:1506.02438), eq. 16. Tokens that are not trained (a tool's, a user's) are no steps.
    `returns` = advantages + values before whitening. whiten: mean 0 and variance 1 (n - 1) over all trained tokens of the batch.

        γ = λ = 1, r = 0, 0, 1, V = 0.5, 0.25, 0.5, all trained: advantages 0.5, 0.75, 0.5, returns 1, 1, 1
    """
    within("gae", 0, 1, gamma=gamma, lam=lam)
    tokens = Tokens.of(response_mask)
    rewards, value = tokens.finite("token_level_rewards", token_level_rewards), tokens.finite("values", values)
    advantages, returns = np.empty(tokens.total, np.float32), np.empty(tokens.total, np.float32)
    for rows, span in tokens.blocks():
        here = value[span].astype(np.float64)
        delta = _deltas(rewards[span], here, tokens.counts[rows], gamma)
        summed = suffix_sums(delta, tokens.counts[rows], gamma * lam)
        advantages[span] = summed
        returns[span] = summed + here
    return Advantage(advantages=tokens.write(whitened(advantages) if whiten else advantages), returns=tokens.write(returns))


def _returns(tokens: Tokens, rewards: Array, gamma: float) -> Array:
    """f32[trained tokens]: G_t."""
    out = np.empty(tokens.total, np.float32)
    for rows, span in tokens.blocks():
        out[span] = suffix_sums(rewards[span].astype(np.float64), tokens.counts[rows], gamma)
    return out


def _deltas(rewards: Array, values: Array, counts: Array, gamma: float) -> Array:
    """f64[tokens]: r_t + γ V_{t+1} - V_t, V = 0 after the last token of a row. values: f64."""
    delta = rewards - values
    following = values[1:] * gamma
    ends = np.cumsum(counts[counts > 0])[:-1] - 1
    following[ends] = 0
    delta[:-1] += following
    return np.asarray(delta)
