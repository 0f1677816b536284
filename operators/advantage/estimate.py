"""One call for any estimator, by what it asks for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ..fields import ResponseMask, TokenRewards, TrajUid, Uid
from ..records import Advantage


class GroupEstimator(Protocol):
    """Compares the trajectories of a prompt. It may also take `traj_uid` by keyword."""

    def __call__(self, token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage: ...


class RowEstimator(Protocol):
    """Looks at each row alone, or at all of them together."""

    def __call__(self, token_level_rewards: TokenRewards, response_mask: ResponseMask) -> Advantage: ...


# What a pipeline takes that has rewards, masks and groups: an operator, a function of operators, or a partial of either.
AdvantageFn: TypeAlias = GroupEstimator | RowEstimator | functools.partial[Advantage]


def estimate(
    fn: Callable[..., Advantage],
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
