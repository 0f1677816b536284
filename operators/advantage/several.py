"""Several rewards at once, each compared on its own scale: gdpo."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rlflow import Record, operator
from rlflow.errors import UsageError

from ..fields import ResponseMask, TrajUid, Uid
from ..options import finite, within
from ..ragged import Tokens, per_row
from ..records import Advantage
from .groups import Groups, nonzero
from .whitening import whitened


@operator(per="batch", least_group=2, ragged=True)
def gdpo(
    rewards: Record,
    response_mask: ResponseMask,
    uid: Uid,
    *,
    weights: Mapping[str, float] | None = None,
    traj_uid: TrajUid | None = None,
    epsilon: float = 1e-6,
) -> Advantage:
    """Σ_k w_k (s_k - μ_k) / (σ_k + ε) over the rewards k, each by its own group statistics; whitened over the batch's trained tokens.

    Liu et al. 2026, GDPO (arXiv:2601.05242), section 3: normalised apart, rewards of different scale or spread keep their say, where
    the sum of them, normalised once, tells fewer cases apart. A reward that is equal within a group adds exactly 0 there. A trajectory
    alone in its group takes no part in the whitening and gets 0. `returns` repeat the advantages.

    rewards: a record of yours whose fields are the rewards, f32[B, R] each. weights: by their names, 1 where not said; UsageError for
    others.

        one uid, correct: 1, 0, format: 0, 10, a token each, ε = 0: ±0.7071 and ∓0.7071, together 0
        weights={"format": 0.5}: ±0.7071 and ∓0.3536, together ±0.3536, whitened ±0.7071
    """
    within("gdpo", 0, math.inf, epsilon=epsilon)
    finite("gdpo", **(weights or {}))
    fields = vars(rewards)
    weighed = _weights(fields, weights or {})
    tokens = Tokens.of(response_mask)
    owner = per_row("uid", uid, tokens.rows)
    traj = None if traj_uid is None else per_row("traj_uid", traj_uid, tokens.rows)
    total, compared = np.zeros(tokens.rows), np.zeros(tokens.rows, np.bool_)
    for name, weight in weighed.items():
        groups = Groups.of(tokens, name, fields[name], owner, traj)
        centred = np.where(groups.comparable(), groups.scores - groups.mean(), 0.0)
        total += weight * centred / nonzero(groups.deviation() + epsilon)
        compared = groups.members[groups.group] > 1
    x = tokens.each(total.astype(np.float32))
    inside = tokens.each(compared)
    x[inside] = whitened(x[inside])
    return Advantage(advantages=tokens.write(x), returns=tokens.write(x))


def _weights(fields: Mapping[str, object], weights: Mapping[str, float]) -> dict[str, float]:
    unknown = sorted(weights.keys() - fields.keys())
    if unknown or not fields:
        raise UsageError(f"gdpo weighs {', '.join(unknown) or 'no rewards'}; the rewards are {', '.join(fields) or 'none'}")
    return {name: float(weights.get(name, 1.0)) for name in fields}
