"""Losses: options are fields, what is read is a record. They return masked terms and never divide.

    policy.py     ppo_clip         log_probs, old_log_probs, advantages     policy
    kl.py         kl_penalty       log_probs, ref_log_probs                 policy; inactive at beta = 0
    entropy.py    entropy_bonus    entropy                                  policy; inactive at coef = 0
    value.py      value_clip       values (new and old), returns            critic
    terms.py      what they share: masking, the bound of log-ratios

Every input is masked *before* it is used (`terms.inside`), so junk or NaN outside `response_mask` touches neither value nor gradient.
The engine divides the sum of the terms by the count of `denominator` over the whole mini-batch on all ranks.
`row_weight`, of every loss here: "row", each row weighs 1; "trajectory", the rows (leaves) of a trajectory weigh 1 together; "group",
those of a prompt do, its trajectories alike. Rows and tokens are then counted as weighed; the record in training has uid and traj_uid.
A loss of yours ends with `terms.where(rows.response_mask, 0)`, and one that returns `[b]`, a term a row, has summed over
such terms: the engine refuses `[b, R]` terms that are not 0 outside the mask, but cannot look into a sum.
`metrics` gives masked terms too, in `[b, R]`: the engine reports their mean over tokens.
"""

from __future__ import annotations

from .entropy import entropy_bonus
from .kl import kl_penalty
from .policy import ppo_clip
from .value import value_clip

__all__ = ["entropy_bonus", "kl_penalty", "ppo_clip", "value_clip"]
