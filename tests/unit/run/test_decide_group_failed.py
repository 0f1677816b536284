"""A failure in batch scope takes one group out of the closed batch; its seat stays empty."""

from __future__ import annotations

import random
from dataclasses import replace

from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import BatchId, GroupId
from rlflow.run.controller.schedule import Config
from rlflow.run.controller.tally import Tally

TWO = Config(n=1, groups_per_batch=2, max_lag=0, last=2, engines=("e",))


def training(config: Config = TWO) -> World:
    world = World(config)
    world.begin()
    for trajectory in world.running():
        world.land(trajectory)
    assert world.training is not None
    return world


def test_the_batch_goes_on_with_what_is_left() -> None:
    world = training()
    actions = world.group_failed(0)
    assert ev.Drop(GroupId(0, 0), "batch", "NaN") in actions
    assert world.state.training is not None
    assert (world.state.training.groups, world.state.training.rows, world.state.training.staleness) == ((1,), 1, {0: 4})
    assert world.state.totals.staleness == {0: 4}
    world.train()
    assert world.state.totals.kept.groups == 1
    assert world.state.totals.kept == Tally(groups=1, landed=1, tokens=4)
    assert world.state.totals.lost == {"batch": Tally(groups=1, landed=1, tokens=4)}


def test_the_seat_is_not_given_to_another_group() -> None:
    """P = 2, L = 0: while the batch trains no group may be registered, whatever was dropped of it."""
    world = training()
    world.group_failed(0)
    assert world.running() == []


def test_a_batch_of_which_nothing_is_left_makes_its_version_of_nothing() -> None:
    world = training()
    world.group_failed(0)
    world.group_failed(1)
    assert world.state.armed.keys() == {"train step 0:0"}
    world.train()
    assert (world.state.published, world.state.totals.kept.groups, world.state.totals.trained_rows) == (1, 0, 0)
    world.sync("e")
    world.finish_fairly(random.Random(0))
    assert world.finish == ev.Finish("done", "the last batch is trained, at version 3")
    assert sorted(world.trained) == [2, 3, 4, 5]


def test_a_run_that_trains_nothing_ends_with_the_reason() -> None:
    world = training(replace(TWO, max_drops=3, last=9))
    for uid in (0, 1):
        world.group_failed(uid)
    world.train()
    world.sync("e")
    for trajectory in world.running():
        world.land(trajectory)
    world.group_failed(2)
    world.group_failed(3)
    assert world.finish == ev.Finish("failed", "4 groups were dropped without a batch in between, the last one by batch: NaN")


def test_what_is_not_in_the_batch_is_an_event_of_the_past() -> None:
    world = training()
    assert world.feed(ev.GroupFailed(BatchId(0, 0), 7, "NaN")) == []
    assert world.feed(ev.GroupFailed(BatchId(0, 1), 0, "NaN")) == []
    assert world.state.totals.ignored == {"GroupFailed": 2}
