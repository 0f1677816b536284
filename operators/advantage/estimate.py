"""One call for any estimator, by what it asks for."""

from __future__ import annotations

import inspect
from typing import Protocol, TypeAlias, cast

from ..fields import ResponseMask, TokenRewards, TrajUid, Uid
from ..records import Advantage


class GroupEstimator(Protocol):
    """Compares the trajectories of a prompt. It may also take `traj_uid` by keyword."""

    def __call__(self, token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage: ...


class TrajectoryEstimator(Protocol):
    """A group estimator that counts the leaves of a trajectory once together."""

    def __call__(
        self, token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, *, traj_uid: TrajUid | None
    ) -> Advantage: ...


class RowEstimator(Protocol):
    """Looks at each row alone."""

    def __call__(self, token_level_rewards: TokenRewards, response_mask: ResponseMask) -> Advantage: ...


AdvantageFn: TypeAlias = GroupEstimator | RowEstimator


def estimate(
    fn: AdvantageFn, *, token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid, traj_uid: TrajUid | None = None
) -> Advantage:
    """Call an estimator with what it asks for, so that swapping one for the other is one argument."""
    __tracebackhide__ = True  # what does not fit the estimator is the mistake of who chose it: the message points there
    asked = inspect.signature(fn).parameters
    if "uid" not in asked:
        return cast(RowEstimator, fn)(token_level_rewards, response_mask)
    if "traj_uid" in asked and traj_uid is not None:
        return cast(TrajectoryEstimator, fn)(token_level_rewards, response_mask, uid, traj_uid=traj_uid)
    return cast(GroupEstimator, fn)(token_level_rewards, response_mask, uid)
