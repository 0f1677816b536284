"""Who is compared with whom: the scores of a batch by group and by trajectory.

    row         0    1    2    3        rows 2 and 3 are leaves of one trajectory
    uid         7    9    7    7
    traj_uid    0    0    1    1
    scores      1    5    0    0        Σ of the rewards of a row's trained tokens
    weight      1    1    .5   .5       1 / leaves of the trajectory; 0 of a row without a trained token
    group       0    1    0    0        numbered by sorting, no [B, B]
    members     2    1                  trajectories of each group

Everything here is a number a row, [B], or a group, [g].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlflow.data.dtypes import Array

from ..ragged import Tokens, per_row, refuse_not_finite
from ..records import Advantage


@dataclass(frozen=True)
class Groups:
    """Scores by row, and who is compared with whom. Rows without a trained token have weight 0."""

    tokens: Tokens
    scores: Array  # f64[B]
    group: Array  # i64[B]
    trajectory: Array  # i64[B]: numbered over all groups
    weight: Array  # f64[B]
    members: Array  # f64[g]
    rewards: Array  # [trained tokens]: what the scores are sums of

    @classmethod
    def find(cls, token_level_rewards: Any, response_mask: Any, uid: Any, traj_uid: Any) -> Groups:
        """In any layout. Raises DataError for rewards inside the mask that are not finite."""
        tokens = Tokens.of(response_mask)
        owner = per_row("uid", uid, tokens.rows)
        traj = None if traj_uid is None else per_row("traj_uid", traj_uid, tokens.rows)
        return cls.of(tokens, "token_level_rewards", token_level_rewards, owner, traj)

    @classmethod
    def of(cls, tokens: Tokens, name: str, rewards: Any, uid: Array, traj_uid: Array | None) -> Groups:
        """By one kind of reward, a number a token, in the layout of the tokens. uid, traj_uid: [B], any values."""
        inside = tokens.read(name, rewards)
        scores = tokens.sums(inside)
        refuse_not_finite(name, scores, uid)
        group, trained = numbered(uid), (tokens.counts > 0).astype(np.float64)
        trajectory = np.arange(tokens.rows) if traj_uid is None else numbered_pairs(group, traj_uid)
        weight = trained / np.maximum(_by(trajectory, trained), 1)[trajectory]
        return cls(tokens, scores, group, trajectory, weight, np.rint(_by(group, weight)), inside)

    # --- a number a group -------------------------------------------------------------------------------------------------------------
    def total(self, x: Array) -> Array:
        """f64[g]: Σ of `x` over the trajectories of each group."""
        return _by(self.group, x * self.weight)

    # --- a number a row ---------------------------------------------------------------------------------------------------------------
    def mean(self) -> Array:
        """f64[B]: the mean score of a row's group."""
        return np.asarray((self.total(self.scores) / np.maximum(self.members, 1))[self.group])

    def mean_of_others(self) -> Array:
        """f64[B]: the mean score of the other trajectories of a row's group."""
        return np.asarray((self.total(self.scores)[self.group] - self.own(self.scores)) / np.maximum(self.members - 1, 1)[self.group])

    def deviation(self) -> Array:
        """f64[B]: the standard deviation of a row's group, as of a sample (n - 1)."""
        squares = self.total((self.scores - self.mean()) ** 2)
        return np.asarray(np.sqrt(squares / np.maximum(self.members - 1, 1))[self.group])

    def own(self, x: Array) -> Array:
        """f64[B]: the mean of `x` over the leaves of a row's trajectory."""
        return np.asarray(_by(self.trajectory, x * self.weight)[self.trajectory])

    def comparable(self) -> Array:
        """bool[B]: the row is trained, in a group of at least two trajectories whose scores are not all equal."""
        low, high = (fill(len(self.members), start, at, self.group, self.scores, self.weight > 0) for start, at in EXTREMES)
        return np.asarray((self.weight > 0) & ((self.members > 1) & (high > low) & ~self._alike(high, low))[self.group])

    def _alike(self, high: Array, low: Array) -> Array:
        """bool[g]: scores that are sums of several rewards differ by no more than these were rounded by: .1 + .2 and .3 are one score."""
        none = np.zeros(high.shape, np.bool_)
        if not len(self.rewards) or not np.issubdtype(self.rewards.dtype, np.floating):
            return none
        spread, rounding = high - low, np.finfo(self.rewards.dtype).eps
        most = float(max(self.rewards.max(), -self.rewards.min())) * int(self.tokens.counts.max())
        if not np.any((spread > 0) & (spread <= rounding * most)):  # as good as always: then nothing has to be looked at closer
            return none
        several = np.where(self.tokens.sums(self.rewards != 0) > 1, self.tokens.sums(np.abs(self.rewards)), 0.0)
        return np.asarray(spread <= rounding * fill(len(self.members), 0.0, np.maximum, self.group, several, self.weight > 0))

    def advantage(self, of_rows: Array) -> Advantage:
        """What is known of each row, on its trained tokens; exactly 0 where there is nothing to compare."""
        of_rows = np.where(self.comparable(), of_rows, 0.0)
        return Advantage(advantages=self.tokens.spread(of_rows), returns=self.tokens.spread(of_rows))


EXTREMES = ((np.inf, np.minimum), (-np.inf, np.maximum))


def fill(groups: int, start: float, ufunc: np.ufunc, group: Array, x: Array, where: Array) -> Array:
    """f64[g]: the least or the largest `x` of each group's rows `where`."""
    out = np.full(groups, start)
    ufunc.at(out, group[where], x[where])
    return out


def numbered(keys: Array) -> Array:
    """i64[B]: equal keys get equal numbers, 0 .. g - 1 in their order."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def numbered_pairs(first: Array, second: Array) -> Array:
    """`numbered` of pairs. first: numbered itself; second: [B], any values."""
    inner = numbered(second)
    return numbered(first * (len(inner) + 1) + inner)


def nonzero(x: Array) -> Array:
    """What to divide by: 1 where nothing deviates and ε is 0, so that there is nothing to scale."""
    return np.where(x == 0, 1.0, x)


def _by(index: Array, x: Array) -> Array:
    return np.bincount(index, weights=x)
