"""Advantage estimators: tokens → a scalar a row → tokens.

    s_i     = Σ_t token_level_rewards[i, t] where response_mask        [B, R] → [B]
    ŝ_i     = s_i against the other trajectories of its uid            per group
    A[i, t] = ŝ_i where response_mask, else 0                          [B] → [B, R]
    G[i, t] = Σ_k γ^k r[i, t+k] over a row's own trained tokens        per row; whitened over the batch, or against a value function

group_relative.py   grpo, rloo, opo, gpg, grpo_passk, maxrl
returns.py          reinforce, reinforce_plus_plus, reinforce_plus_plus_baseline, remax, gae
several.py          gdpo: several rewards, each on its own scale
steps.py            gigpo: episodes, and the steps that began in the same state
distill.py          distill: log-probs of a teacher
whitening.py        whiten
estimate.py         one call for any of them: what `--advantage` takes
groups.py           who is compared with whom: groups, trajectories, their means and deviations
scan.py             discounted suffix sums of many rows at once

What holds for all of them, whatever the layout (right-padded, jagged nested tensors, Columns: see operators/ragged.py):
- Outside the mask nothing is read (NaN there is harmless) and 0 is written. NaN or infinity inside it is a DataError that names the row.
- A row whose mask is all False has no place for a score: it is in no baseline, no statistic, no count, and gets 0. (Its 0 would pull the
  baseline down.) So do padding rows, whose uid is their own besides. One trained token is enough for a row to be a row.
- A baseline is over *trajectories*. With `traj_uid` the leaves of one trajectory count once together, each with weight 1 / leaves.
- A group of one trajectory has no baseline: advantage 0, as it cannot tell better from worse (the raw score would be on another scale, and
  would push every positive reward up). A group whose scores are equal: exactly 0, whatever float rounding makes of its deviation.
- Statistics of the batch (whitening) are over trained tokens, variance as of a sample (n - 1); of fewer than two, or of equal ones: 0.
- Sums are in float64, results float32 and in memory of their own. Groups are found by sorting: O(B log B), no [B, B].

No torch is imported at the top: `rlflow check` reads these files without it.
"""

from __future__ import annotations

from .distill import distill
from .estimate import AdvantageFn, estimate
from .group_relative import gpg, grpo, grpo_passk, maxrl, opo, rloo
from .returns import gae, reinforce, reinforce_plus_plus, reinforce_plus_plus_baseline, remax
from .several import gdpo
from .steps import gigpo
from .whitening import whiten

__all__ = [
    "AdvantageFn",
    "distill",
    "estimate",
    "gae",
    "gdpo",
    "gigpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "maxrl",
    "opo",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "whiten",
]
