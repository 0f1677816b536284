"""V: versions are counted from levels, every source passes one gate, and no age makes the ring wait for itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decide_world import World
from ring_cases import ONE, answer_first, boarded, dropped, land, sent

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import BatchId, EvaluationId, Span, TrajectoryId
from rlflow.run.controller.schedule import Origin


# --- V1: the bound is made of levels, not of a counter that a resume forgets
@pytest.mark.parametrize("version", [0, 100])
def test_V1_with_max_lag_2_and_8_groups_24_are_sent_at_version_100_as_at_0(version: int) -> None:
    world = World(replace(ONE, groups_per_batch=8, max_lag=2, last=999), Origin(version=version))
    assert len(sent(world.begin(capacity=1000))) == 24


# --- V3: one gate, nothing evicted
def test_V3_what_came_through_no_admission_is_not_taken_in() -> None:
    """A session that is not ours lands under an id of its own: nothing waits, nothing boards, one event is counted."""
    world = World(replace(ONE, max_lag=1))
    world.begin()
    before = world.state.waiting
    assert world.feed(ev.Landed(TrajectoryId(1000, 0, 0), 1, (Span(0, 0, 4),))) == []
    assert (world.state.waiting, world.state.ready, world.state.totals.ignored.total()) == (before, 0, 1)


def test_V3_of_1025_landed_groups_none_falls_out_at_the_far_end() -> None:
    world = World(replace(ONE, groups_per_batch=1025))
    world.begin(capacity=2000)
    land(world, *range(1025))
    assert boarded(world) == tuple(range(1025))
    assert dropped(world.feed(ev.Free("e", 2000))) == []


# --- V5, V6: a trajectory that several versions sampled is as old as its oldest token
def test_V5_a_trajectory_sampled_by_versions_0_1_and_2_counts_by_its_oldest() -> None:
    """L = 2: uid 2 begins at version 0 and ends under version 2: it is due in batch 2, whatever its last token says."""
    world = World(replace(ONE, max_lag=2))
    world.begin()
    for uid in (0, 1):
        land(world, uid)
        world.train()
        world.sync("e")
    actions = land(world, 3)
    assert boarded(world) == ()  # 3 is ready, but 2 must be in this batch
    assert not any(isinstance(action, ev.Train) for action in actions)
    land(world, 2)
    assert boarded(world) == (2,)
    assert world.state.training is not None
    assert world.state.training.staleness == {0: 4, 1: 4, 2: 4}


def test_V6_a_span_of_a_version_that_the_trajectory_was_not_registered_for_is_no_row() -> None:
    """Registered at 0 while 0 is published: tokens of versions 2, 4 and 6 cannot be there, and are not trained."""
    world = World(ONE)
    world.begin()
    actions = world.feed(ev.Landed(TrajectoryId(0, 0, 0), 1, (Span(2, 0, 4), Span(4, 4, 8), Span(6, 8, 12))))
    assert ev.Abort(TrajectoryId(0, 0, 0)) in actions
    assert sent(actions) == ["0.0.1"]
    assert boarded(world) == ()


# --- V8: age 0 and weights that arrive late
def test_V8_with_max_lag_0_a_sync_that_takes_long_is_waited_for_and_nothing_is_evicted() -> None:
    world = World(replace(ONE, groups_per_batch=2))
    world.begin()
    land(world, 0, 1)
    assert [type(action).__name__ for action in world.train()] == ["Disarm", "Sync", "Arm"]
    for _ in range(2):  # two ticks in which nothing has come
        assert world.feed(ev.Free("e", 64)) == []
    assert world.timers == {"sync 0:1 to e (attempt 2)"}
    assert sent(world.sync("e")) == ["2.0.0", "3.0.0"]
    assert world.dropped.total() == 0


# --- V10: the last batch
def test_V10_a_run_of_3_batches_ends_after_3_batches() -> None:
    world = World(replace(ONE, last=2))
    world.begin()
    while world.finish is None:
        answer_first(world)
    assert world.finish == ev.Finish("done", "the last batch is trained, at version 3")
    assert sorted(world.trained) == [0, 1, 2]


def test_V10_the_last_version_reaches_the_engine_that_evaluates_it() -> None:
    world = World(replace(ONE, last=2, eval_every=3))
    world.begin()
    while world.finish is None:
        answer_first(world)
    assert world.finish.outcome == "done"
    assert world.evaluated == [0, 3]
    assert ev.Evaluated(EvaluationId(0, 3, "e", 2)) in world.history
    assert ev.Saved(BatchId(0, 2)) in world.history
