"""Who is compared with whom: the scores of a batch by group and trajectory, found by sorting."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlflow import Tensor
from rlflow.errors import DataError

from ..records import Advantage


@dataclass(frozen=True)
class Groups:
    """Scores by row, and who is compared with whom. Rows without a trained token have weight 0."""

    scores: Tensor  # f64[B]
    of_row: Tensor  # i64[B]: the group of a row, 0 .. g - 1
    trajectory: Tensor  # i64[B]: the trajectory of a row, numbered over all groups
    weight: Tensor  # f64[B]: 1 / leaves of its trajectory
    trajectories: Tensor  # f64[g]: how many have a trained token

    @classmethod
    def find(cls, token_level_rewards: Tensor, response_mask: Tensor, uid: Tensor, traj_uid: Tensor | None) -> Groups:
        mask = response_mask.bool()
        scores = token_level_rewards.double().where(mask, 0.0).sum(-1)
        refuse_non_finite("token_level_rewards", scores, uid)
        scored = mask.any(-1).double()
        of_row = numbered(uid)
        trajectory = scored.new_ones(scored.shape).cumsum(0).long() - 1 if traj_uid is None else numbered_pairs(of_row, traj_uid)
        weight = scored / sum_by(scored, trajectory).clamp(min=1)[trajectory]
        return cls(scores, of_row, trajectory, weight, sum_by(weight, of_row).round())

    def total(self, x: Tensor) -> Tensor:
        """f64[g]: Σ of `x` over the trajectories of each group."""
        return sum_by(x * self.weight, self.of_row)

    def mean(self) -> Tensor:
        """f64[B]: the mean score of a row's group."""
        return (self.total(self.scores) / self.trajectories.clamp(min=1))[self.of_row]

    def deviation(self, centred: Tensor) -> Tensor:
        """f64[B]: the sample standard deviation of a row's group."""
        return (self.total(centred**2) / (self.trajectories - 1).clamp(min=1)).sqrt()[self.of_row]

    def mean_of_others(self) -> Tensor:
        """f64[B]: the mean score of the other trajectories of a row's group."""
        own = sum_by(self.scores * self.weight, self.trajectory)[self.trajectory]
        return (self.total(self.scores)[self.of_row] - own) / (self.trajectories - 1).clamp(min=1)[self.of_row]

    def comparable(self) -> Tensor:
        """flag[B]: the row is scored, in a group of at least two trajectories whose scores are not all equal."""
        scored, groups = self.weight > 0, self.trajectories.shape
        low = self.scores.new_full(groups, math.inf).scatter_reduce(0, self.of_row, self.scores.where(scored, math.inf), "amin")
        high = self.scores.new_full(groups, -math.inf).scatter_reduce(0, self.of_row, self.scores.where(scored, -math.inf), "amax")
        return scored & ((self.trajectories > 1) & (high > low))[self.of_row]


def numbered(keys: Tensor) -> Tensor:
    """i64[B]: equal keys get equal numbers, 0 .. g - 1 in their order. keys: i64[B], any values."""
    values, order = keys.sort(stable=True)
    new = values.new_zeros(values.shape)
    new[1:] = (values[1:] != values[:-1]).long()
    return values.new_zeros(values.shape).scatter(0, order, new.cumsum(0))


def numbered_pairs(first: Tensor, second: Tensor) -> Tensor:
    """`numbered` of pairs. first: numbered itself; second: i64[B], any values."""
    inner = numbered(second)
    return numbered(first * (inner.shape[0] + 1) + inner)


def sum_by(x: Tensor, index: Tensor) -> Tensor:
    count = int(index.max()) + 1 if index.numel() else 0
    return x.new_zeros(count).index_add(0, index, x)


def refuse_non_finite(name: str, of_rows: Tensor, uid: Tensor | None = None) -> None:
    """Raise DataError naming the first row whose sum is not finite: it would poison its group, or the whitening of the batch."""
    bad = (~of_rows.isfinite()).nonzero().flatten()
    if bad.numel():
        row = int(bad[0])
        whose = "" if uid is None else f" (uid {int(uid[row])})"
        raise DataError(f"{name} of row {row}{whose} hold NaN or infinity inside the response mask ({bad.numel()} such rows)")


def spread(scalar: Tensor, response_mask: Tensor) -> Advantage:
    """[B] → [B, R], in memory of its own for each field: a later write to one token or field touches no other."""
    advantages = scalar.float().unsqueeze(-1) * response_mask.float()
    return Advantage(advantages=advantages, returns=advantages.clone())
