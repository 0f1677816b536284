"""One call for any estimator, by what it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from ..fields import ResponseMask, TokenRewards, TrajUid, Uid
from ..records import Advantage

AdvantageFn: TypeAlias = Callable[..., Advantage]  # an operator, a partial of one or a function of operators; `estimate` says what it gets


def estimate(
    fn: AdvantageFn,
    *,
    token_level_rewards: TokenRewards,
    response_mask: ResponseMask,
    uid: Uid,
    traj_uid: TrajUid | None = None,
    **others: Any,
) -> Advantage:
    """Call an estimator with what it asks for by name, so that swapping one for the other is one argument.

    others: whatever else the pipeline has, under the names of the fields: `values`, `reward_baselines`, `teacher_log_probs`, ... ; None
    is not there. What the estimator needs and nothing gives is refused where it was chosen.

        estimate(fn, token_level_rewards=r, response_mask=m, uid=u, values=v)     grpo reads r, m, u; gae reads r, v, m
    """
    __tracebackhide__ = True  # what does not fit the estimator is the mistake of who chose it: the message points there
    has = {"token_level_rewards": token_level_rewards, "response_mask": response_mask, "uid": uid, "traj_uid": traj_uid, **others}
    asked = inspect.signature(fn).parameters
    taken = {name: value for name, value in has.items() if value is not None and (name in asked)}
    return fn(**taken)
