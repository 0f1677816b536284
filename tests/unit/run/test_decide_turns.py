"""Later turns: to the engine that holds the history, or another that is fit; else they wait, with a name. One trajectory, two engines."""

from __future__ import annotations

from dataclasses import replace

from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.schedule import Config
from rlflow.run.stall import describe

CONFIG = Config(n=1, groups_per_batch=1, max_lag=1, last=9, engines=("a", "b"), watermark=1, timeouts={"turn": 7.0})
FIRST = TrajectoryId(0, 0, 0)


def playing(config: Config = CONFIG, capacity: int = 2) -> World:
    """Trajectory 0.0.0 runs on a; b is idle and serves the same version."""
    world = World(config)
    world.begin(capacity)
    assert world.state.groups[0].trajectories[0].engine == "a"
    return world


def turn(world: World, number: int) -> list[ev.AnyAction]:
    member = world.members[0][0]
    assert member.turn == number - 1
    return world.turn(FIRST)


def resync(world: World, *names: str) -> None:
    """The engines hold nothing known until `world.sync(name)`."""
    for name in names:
        engine = world.state.engines[name]
        engine.state, engine.held = "stale", None
        world.state.unsynced[name] = None
        world.hosts[name].held = None
    world.feed(ev.Free("b", world.hosts["b"].capacity))
    assert set(world.syncs) == set(names)


def test_the_next_turn_goes_to_the_engine_of_the_last() -> None:
    assert turn(playing(), 1) == [ev.Continue(FIRST, 1, "a")]


def test_it_does_so_at_the_watermark_and_without_free_room() -> None:
    world = playing(capacity=1)
    assert turn(world, 1) == [ev.Continue(FIRST, 1, "a")]
    assert world.state.in_flight == 1


def test_turns_come_one_after_the_other() -> None:
    world = playing()
    assert world.feed(ev.Turn(FIRST, 2)) == []
    turn(world, 1)
    assert world.feed(ev.Turn(FIRST, 1)) == []
    assert turn(world, 2) == [ev.Continue(FIRST, 2, "a")]
    assert world.state.totals.ignored == {"Turn": 2}


def test_an_engine_that_is_being_synced_is_left_for_one_with_room() -> None:
    world = playing()
    resync(world, "a")
    assert turn(world, 1)[-1] == ev.Continue(FIRST, 1, "b")
    assert list(world.state.engines["b"].running) == [(0, 0)]
    assert not world.state.engines["a"].running


def test_where_no_engine_is_fit_the_turn_waits_with_a_name() -> None:
    world = playing()
    resync(world, "a", "b")
    assert turn(world, 1) == [ev.Arm("turn 0.0.0", 7.0)]
    actions = world.sync("a")
    assert [action for action in actions if isinstance(action, ev.Continue | ev.Disarm)][:2] == [
        ev.Disarm("turn 0.0.0"), ev.Disarm("sync 0:0 to a (attempt 2)")
    ][::-1]  # fmt: skip
    assert ev.Continue(FIRST, 1, "a") in actions


def test_a_stall_names_the_turn_that_waits() -> None:
    world = playing()
    resync(world, "a", "b")
    turn(world, 1)
    told = describe(30.0, world.state, {"turn 0.0.0": 12.0}, [], 0.0).splitlines()
    assert told[1:] == ["  turn 0.0.0 waits 12 s for an engine that holds its version or a newer one"]


def test_an_older_version_than_the_tag_is_not_fit() -> None:
    """a is being synced, and b still holds an older version than the one that the trajectory began with."""
    world = playing()
    resync(world, "a")
    world.state.groups[0].trajectories[0].version_tag = 1
    assert [action for action in turn(world, 1) if isinstance(action, ev.Continue)] == []
    assert list(world.state.turns) == [(0, 0)]


def test_a_turn_that_waits_too_long_is_a_failed_attempt() -> None:
    world = playing()
    resync(world, "a", "b")
    turn(world, 1)
    actions = world.run_out("turn 0.0.0")
    assert ev.Abort(FIRST) in actions
    assert world.state.turns == {}
    assert world.state.groups[0].trajectories[0].attempt == 1


def test_a_trajectory_whose_engine_dies_waits_for_no_turn_any_more() -> None:
    world = playing(replace(CONFIG, engine_restarts=1))
    resync(world, "a", "b")
    turn(world, 1)
    actions = world.engine_down("a")
    assert ev.Disarm("turn 0.0.0") in actions
    assert world.state.turns == {}
