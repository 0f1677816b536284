"""Q: nothing is thrown away, nobody waits without a name, and every order of events leads to the end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from decide_world import World
from interleavings import Gate, explore
from ring_cases import ONE, answer_first, boarded, dropped, land, sent

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import GroupId, TrajectoryId
from rlflow.run.controller.schedule import Hop


# --- Q1: what is ready and does not board
def test_Q1_of_5_ready_groups_2_board_and_3_remain() -> None:
    world = World(replace(ONE, groups_per_batch=2, max_lag=2))
    world.begin()
    land(world, 0, 1, 2, 3, 4)
    assert boarded(world) == (0, 1)
    assert (world.state.ready, world.dropped.total()) == (3, 0)


def test_Q1_a_full_queue_does_not_keep_a_landing_out() -> None:
    """One batch trains, one is queued, the queue takes no other: three more land and are ready."""
    world = World(replace(ONE, max_lag=4, queue=1))
    world.begin()
    land(world, 0, 1, 2, 3, 4)
    assert (boarded(world), world.state.queue_depth, world.state.ready) == ((0,), 1, 3)


# --- Q2: a task that never returns
def test_Q2_an_operator_that_never_returns_is_named_and_its_group_refilled() -> None:
    world = World(replace(ONE, hops=(Hop("reward"),)))
    world.begin()
    land(world, 0)
    actions = world.run_out("operator reward of trajectory 0.0.0")
    [drop] = [action for action in actions if isinstance(action, ev.Drop)]
    assert drop.detail == "timeout: operator reward of trajectory 0.0.0 waited 600 s for Ran"
    assert sent(actions) == ["1.0.0"]


def test_Q2_125_of_128_that_landed_do_not_wait_for_ever_for_3() -> None:
    world = World(replace(ONE, groups_per_batch=128))
    world.begin(capacity=128)
    land(world, *range(125))
    for uid in (125, 126, 127):
        assert sent(world.run_out(f"trajectory {uid}.0.0")) == [f"{uid}.0.1"]
    land(world, 125, 126, 127)
    assert len(boarded(world)) == 128


# --- Q4: the producer dies
def test_Q4_a_producer_that_dies_and_does_not_come_back_ends_the_run_within_the_timeout_of_its_start() -> None:
    world = World(replace(ONE, engine_restarts=1, restart_delay=2.0, timeouts={"engine start": 30.0}))
    world.begin()
    actions = world.engine_down("e")
    assert ev.Start("e", 2, after=2.0) in actions
    assert ev.Arm("engine start e", 32.0) in actions
    world.run_out("engine start e")
    assert world.finish is not None
    assert world.finish.outcome == "failed"
    assert "engine e went down: timeout: engine start e waited 30 s for EngineUp" in world.finish.why


# --- Q5: prompt 3 of 8 fails for good
def test_Q5_prompt_3_of_8_fails_for_good_and_7_are_trained() -> None:
    world = World(replace(ONE, groups_per_batch=2, max_lag=1, max_attempts=2, prompts=8))
    world.begin()
    while world.finish is None:
        third = next((trajectory for trajectory in world.running() if trajectory.uid == 3), None)
        world.fail(third) if third is not None else answer_first(world)
    assert world.finish.outcome == "done"
    assert sorted(world.trained) == [0, 1, 2, 4, 5, 6, 7]
    assert dict(world.dropped) == {3: 1}


def test_Q5_a_straggler_holds_only_the_batch_in_which_it_is_due() -> None:
    """P = 1, L = 2: uid 0 does not land; 1 and 2 are trained before it, and the third batch waits for it, by name."""
    world = World(replace(ONE, max_lag=2))
    world.begin()
    for uid in (1, 2):
        land(world, uid)
        assert boarded(world) == (uid,)
        world.train()
        world.sync("e")
    land(world, 3, 4)
    assert boarded(world) == ()
    assert "trajectory 0.0.0" in world.timers
    land(world, 0)
    assert boarded(world) == (0,)


# --- Q7: lost wake-ups
@pytest.mark.parametrize(("max_lag", "queue"), [(0, 0), (1, 1)])
def test_Q7_in_every_order_of_ups_rooms_syncs_landings_and_steps_the_run_goes_on(max_lag: int, queue: int) -> None:
    """The second seat of an engine appears once, at any moment: nobody waits for an edge that is gone."""
    config = replace(ONE, max_lag=max_lag, queue=queue, last=1, engines=("a", "b"), hops=(Hop("reward"),))
    explored = explore(Gate(config))
    assert explored.ends == {("done", "the last batch is trained, at version 2")}
    assert explored.states > 300


def test_Q7_a_wake_up_that_comes_before_the_wait_is_not_lost() -> None:
    world = World(replace(ONE, max_lag=1))
    world.feed(ev.RunStarted())
    world.engine_up("e", 1)
    world.hosts["e"].capacity = 2
    world.feed(ev.Free("e", 2))  # before it may take anything: it holds no weights
    world.come_up()
    assert sent(world.sync("e")) == ["0.0.0", "1.0.0"]


# --- Q9: while something is waited for, everything else is heard
@pytest.mark.parametrize("held", ["sync", "save", "train step"])
def test_Q9_a_wait_holds_no_other_event_up(held: str) -> None:
    world = World(replace(ONE, groups_per_batch=2, max_lag=1, save_every=1, engines=("e", "f")))
    world.begin(capacity=2)
    land(world, 0, 1)
    if held != "train step":
        world.train()
    assert any(name.startswith(held) for name in world.timers)
    for trajectory in world.running():
        world.fail(trajectory)
        assert world.state.totals.ignored.total() == 0
    assert world.engine_down("f") is not None
    assert world.stop() is not None


# --- Q11: every group is filtered
def test_Q11_a_run_whose_every_group_is_filtered_ends_after_5_with_the_reason() -> None:
    world = World(replace(ONE, hops=(Hop("filter", per="group"),), max_drops=5))
    world.begin()
    count = 0
    while world.finish is None:
        land(world, count)
        world.ran("filter", GroupId(0, count), "drop")
        count += 1
    assert count == 6
    assert world.finish == ev.Finish("failed", "6 groups were dropped without a batch in between, the last one by filter: no variance")


# --- Q20: what failed leaves nothing to train
def test_Q20_of_a_failed_rollout_no_row_is_trained() -> None:
    world = World(replace(ONE, max_attempts=1))
    world.begin()
    actions = world.fail(TrajectoryId(0, 0, 0))
    assert dropped(actions) == [(0, "attempts")]
    land(world, 1)
    assert boarded(world) == (1,)
    assert world.training is not None
    assert [str(trajectory) for trajectory in world.training.trajectories] == ["1.0.0"]


def test_answers_come_in_any_order_and_the_result_is_the_same_run() -> None:
    """Q7 and Q9 on a larger ring: 50 random orders, one end."""
    for seed in range(50):
        world = World(replace(ONE, n=2, groups_per_batch=2, max_lag=2, queue=1, last=5, engines=("a", "b"), hops=(Hop("reward"),)))
        world.feed(ev.RunStarted())
        world.finish_fairly(random.Random(seed))
        assert world.finish == ev.Finish("done", "the last batch is trained, at version 6")
        assert world.trained.total() == 12
