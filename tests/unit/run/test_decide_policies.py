"""What becomes of groups that the next batch would push over max_lag: waited for, dropped, masked or weighed.

All of them on one schedule, P = 2, L = 1: uids 0 to 3 have tag 0; 0 and 1 are batch 0. Then 4 and 5 have tag 1 and land first, so that
2 and 3, due in batch 1, are late.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.schedule import Config

TWO = Config(n=1, groups_per_batch=2, max_lag=1, last=9, engines=("e",))


def late(policy: str, *ready: int) -> World:
    """2 and 3 still run; `ready` of the younger ones have landed."""
    world = World(replace(TWO, policy=policy))  # type: ignore[arg-type]
    world.begin()
    land(world, 0, 1)
    world.train()
    world.sync("e")
    assert [world.tags[uid] for uid in (2, 3, 4, 5)] == [0, 0, 1, 1]
    land(world, *ready)
    return world


def land(world: World, *uids: int) -> list[ev.AnyAction]:
    actions: list[ev.AnyAction] = []
    for trajectory in [trajectory for uid in uids for trajectory in world.running() if trajectory.uid == uid]:
        actions = world.land(trajectory)
    return actions


def boarded(world: World) -> tuple[int, ...]:
    return world.training.groups if world.training else ()


def drops(actions: list[ev.AnyAction]) -> list[tuple[int, str, str]]:
    return [(action.group.uid, action.reason, action.detail) for action in actions if isinstance(action, ev.Drop)]


def test_wait_boards_when_the_late_ones_have_landed() -> None:
    world = late("wait", 4, 5)
    assert boarded(world) == ()
    land(world, 2, 3)
    assert boarded(world) == (2, 3)


def test_drop_boards_at_once_and_drops_both_late_ones() -> None:
    """b = 1, k = 0: two groups are due and none may be left behind."""
    world = late("drop", 4)
    actions = land(world, 5)
    why = "due by batch 1, and 2 groups are ready to be batch 1 without it"
    assert drops(actions) == [(3, "stale", why), (2, "stale", why)]
    assert ev.Abort(TrajectoryId(2, 0, 0)) in actions
    assert boarded(world) == (4, 5)


def test_drop_spares_a_late_one_that_has_landed() -> None:
    world = late("drop", 2)
    assert drops(land(world, 4)) == [(3, "stale", "due by batch 1, and 2 groups are ready to be batch 1 without it")]
    assert boarded(world) == (2, 4)


def test_drop_drops_no_more_than_are_too_many() -> None:
    """P = 1, L = 2, b = 1: uids 1 and 2 (tag 0) run, 3 (tag 1) is ready. Two are due by batch 2 = b + 1 and one seat is left: one goes."""
    world = World(replace(TWO, groups_per_batch=1, max_lag=2, policy="drop"))
    world.begin()
    land(world, 0)
    world.train()
    world.sync("e")
    assert [uid for uid, _, _ in drops(land(world, 3))] == [2]
    assert boarded(world) == (3,)


@pytest.mark.parametrize("policy", ["mask", "correct"])
def test_mask_and_correct_board_at_once_and_keep_the_late_ones(policy: str) -> None:
    world = late(policy, 4, 5)
    assert boarded(world) == (4, 5)
    assert not world.dropped
    land(world, 2, 3)
    world.train()
    assert boarded(world) == (2, 3)


def test_mask_counts_the_tokens_of_every_gap() -> None:
    """2 and 3 ran through version 1 and 2: four tokens of each in batch 2, and those of version 0, with a gap of 2, are masked."""
    world = late("mask", 4, 5)
    world.train()
    world.sync("e")
    land(world, 2, 3)
    assert world.state.training is not None
    assert world.state.training.staleness == {0: 8, 1: 8, 2: 8}
    assert world.state.masked_tokens == 8


def test_mask_drops_a_group_of_which_nothing_is_left() -> None:
    """P = 1, L = 1, two engines; engine b is not synced before its group lands, when batch 2 is next and version 0 is masked in it."""
    world = World(replace(TWO, groups_per_batch=1, max_lag=1, policy="mask", engines=("a", "b")))
    world.begin(capacity=1)
    assert [str(t) for t in world.running()] == ["0.0.0", "1.0.0"]
    land(world, 0)
    world.train()
    world.sync("a")
    land(world, 2)
    assert boarded(world) == (2,)  # batch 1; uid 1 of tag 0 is due in it and runs on
    world.train()
    actions = land(world, 1)
    assert drops(actions) == [(1, "stale", "its newest token is of version 0, batch 2 trains those from 1 on")]
    assert world.state.totals.dropped == {"stale": 1}


def test_correct_keeps_it() -> None:
    world = World(replace(TWO, groups_per_batch=1, max_lag=1, policy="correct", engines=("a", "b")))
    world.begin(capacity=1)
    land(world, 0)
    world.train()
    world.sync("a")
    land(world, 2)
    world.train()
    land(world, 1)
    assert boarded(world) == (1,)
    assert world.state.training is not None
    assert world.state.training.staleness == {2: 4}


@pytest.mark.parametrize("policy", ["wait", "drop", "mask", "correct"])
def test_max_lag_0_is_synchronous_under_every_policy(policy: str) -> None:
    world = World(replace(TWO, max_lag=0, oversample=1, policy=policy))  # type: ignore[arg-type]
    world.begin()
    land(world, 2)
    assert [uid for uid, reason, _ in drops(land(world, 0)) if reason == "oversampled"] == [1]
    assert boarded(world) == (0, 2)
    assert 1 not in world.state.groups
