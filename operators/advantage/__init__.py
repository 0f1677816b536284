"""Advantage estimators: tokens → a scalar a row → tokens.

    s_i     = Σ_t token_level_rewards[i, t] where response_mask        [B, R] → [B]
    ŝ_i     = s_i against the other trajectories of its uid            grpo, rloo   (per group)
    A[i, t] = ŝ_i where response_mask, else 0                          [B] → [B, R]
    gae     = Σ_k (γλ)^k δ_{t+k} over a row's own valid tokens         (whitened over the batch)

What holds for all of them:
- The scalar sits at a row's last position with `response_mask`; outside the mask nothing is read (NaN there is harmless) and 0 is written.
- A row whose mask is all False has no place for a score: it is in no baseline and gets 0. (Its 0 would pull the baseline down.)
- A baseline is over *trajectories*. With `traj_uid` the leaves of one trajectory count once together, each with weight 1 / leaves.
- A group of one trajectory has no baseline: advantage 0, as it cannot tell better from worse (the raw score would be on another scale, and
  would push every positive reward up). A group whose scores are equal: exactly 0, whatever float rounding makes of its deviation.
- NaN or infinity inside the mask is a DataError that names the row.
- Padding rows have a uid of their own, so they are in no group; and no mask, so they are in no whitening.
- Sums are in float64, results float32. Groups are found by sorting: O(B log B), no [B, B].

Only tensor methods: `rlflow check` never imports torch for these files.

group_relative   grpo, rloo
returns          gae
groups           who is compared with whom, and what holds for all
estimate         one call for any of them
"""

from __future__ import annotations

from .estimate import AdvantageFn, GroupEstimator, RowEstimator, TrajectoryEstimator, estimate
from .group_relative import grpo, rloo
from .returns import gae

__all__ = [
    "AdvantageFn",
    "GroupEstimator",
    "RowEstimator",
    "TrajectoryEstimator",
    "estimate",
    "gae",
    "grpo",
    "rloo",
]
