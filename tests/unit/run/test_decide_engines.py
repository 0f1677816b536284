"""Engines and what is asked of them: syncs, evaluations, deaths, by the exact actions."""

from __future__ import annotations

from dataclasses import replace

from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import BatchId, EvaluationId, Span, SyncId, TrajectoryId
from rlflow.run.controller.schedule import Config, Hop
from rlflow.run.controller.state import State

ONE = Config(n=1, groups_per_batch=1, max_lag=0, last=9, engines=("e",))
TWO = replace(ONE, engines=("a", "b"))
FIRST = TrajectoryId(0, 0, 0)


def land_first(world: World) -> list[ev.AnyAction]:
    return world.land(world.running()[0])


def syncs(actions: list[ev.AnyAction]) -> list[SyncId]:
    return [action.sync for action in actions if isinstance(action, ev.Sync)]


def test_one_whole_run_by_its_actions() -> None:
    state = State(replace(ONE, last=0, hops=(Hop("reward"),), timeouts={"sync": 5.0}))
    sync, batch = SyncId(0, 0, "e", 1), BatchId(0, 0)
    assert decide(state, ev.RunStarted()) == [
        ev.Start("e", 1),
        ev.Arm("engine start e", 300.0),
        ev.StartWorkers(1, None),
        ev.Arm("worker start", 300.0),
    ]
    assert decide(state, ev.EngineUp("e", 1, 8)) == [ev.Disarm("engine start e")]
    assert decide(state, ev.WorkersUp(1)) == [ev.Disarm("worker start"), ev.Sync(sync), ev.Arm("sync 0:0 to e (attempt 1)", 5.0)]
    assert decide(state, ev.Synced(sync)) == [
        ev.Disarm("sync 0:0 to e (attempt 1)"), ev.Dispatch(FIRST, "e", 0), ev.Arm("trajectory 0.0.0", 1800.0),
    ]  # fmt: skip
    assert decide(state, ev.Landed(FIRST, 1, (Span(0, 3, 9),))) == [
        ev.Disarm("trajectory 0.0.0"), ev.Run("reward", FIRST), ev.Arm("operator reward of trajectory 0.0.0", 600.0),
    ]  # fmt: skip
    assert decide(state, ev.Ran("reward", FIRST)) == [
        ev.Disarm("operator reward of trajectory 0.0.0"), ev.Train(batch, (0,), (FIRST,)), ev.Arm("train step 0:0", 3600.0),
    ]  # fmt: skip
    assert decide(state, ev.Trained(batch)) == [ev.Disarm("train step 0:0"), ev.Save(batch), ev.Arm("save 0:0", 1800.0)]
    done = ev.Finish("done", "the last batch is trained, at version 1")
    assert decide(state, ev.Saved(batch)) == [ev.Disarm("save 0:0"), ev.Recycle((0,)), done]
    assert state.totals.staleness == {0: 6}


def test_saves_and_syncs_stand_before_the_train_step_that_changes_their_weights() -> None:
    world = World(replace(ONE, max_lag=1, save_every=1))
    world.begin()
    land_first(world)
    land_first(world)
    actions = world.train()
    assert [type(action).__name__ for action in actions if isinstance(action, ev.Save | ev.Sync | ev.Train)] == ["Save", "Sync", "Train"]


def test_W6_the_first_edge_is_a_sync_whoever_comes_up_last() -> None:
    world = World(ONE)
    world.feed(ev.RunStarted())
    assert syncs(world.engine_up("e")) == []
    assert syncs(world.come_up()) == [SyncId(0, 0, "e", 1)]


def test_an_engine_that_still_syncs_holds_no_other_back() -> None:
    world = World(replace(TWO, max_lag=1))
    world.begin()
    land_first(world)
    world.train()
    assert set(world.syncs) == {"a", "b"}
    actions = world.sync("b")
    assert [(action.engine, action.version_tag) for action in actions if isinstance(action, ev.Dispatch)] == [("b", 1)]


def test_an_engine_that_missed_a_version_catches_up_before_it_gets_work() -> None:
    world = World(replace(TWO, max_lag=2))
    world.begin()
    for _ in range(2):
        land_first(world)
    world.train()
    world.train()
    assert world.syncs["a"].version == 1
    actions = world.sync("a")
    assert syncs(actions) == [SyncId(0, 2, "a", 3)]
    assert not any(isinstance(action, ev.Dispatch) for action in actions)


def test_a_failed_sync_is_tried_again_and_then_ends_the_run_with_the_engine() -> None:
    world = World(replace(ONE, max_sync_attempts=2))
    world.feed(ev.RunStarted())
    world.come_up()
    world.engine_up("e")
    assert syncs(world.fail_sync("e")) == [SyncId(0, 0, "e", 2)]
    world.fail_sync("e")
    assert world.finish == ev.Finish("failed", "version 0 could not be synced to engine e in 2 attempts, the last one: connection reset")


def test_syncs_that_fail_now_and_then_do_not_add_up() -> None:
    world = World(replace(ONE, max_sync_attempts=2))
    world.begin()
    for _ in range(3):
        land_first(world)
        world.train()
        world.fail_sync("e")
        world.sync("e")
    assert world.finish is None
    assert world.state.totals.failed_syncs == 3


def test_the_first_version_is_evaluated_before_training_and_beside_the_rollout() -> None:
    world = World(replace(ONE, eval_every=5))
    actions = world.begin()
    assert ev.Evaluate(EvaluationId(0, 0, "e", 1)) in actions
    assert any(isinstance(action, ev.Dispatch) for action in actions)


def test_an_engine_under_evaluation_is_synced_when_it_is_over() -> None:
    world = World(replace(ONE, eval_every=5))
    world.begin()
    land_first(world)
    assert syncs(world.train()) == []
    assert syncs(world.evaluate(EvaluationId(0, 0, "e", 1))) == [SyncId(0, 1, "e", 2)]


def test_other_engines_go_on_during_an_evaluation() -> None:
    world = World(replace(TWO, eval_every=5))
    world.begin()
    land_first(world)
    assert [sync.engine for sync in syncs(world.train())] == ["b"]


def test_V10_the_last_version_is_synced_evaluated_and_saved() -> None:
    world = World(replace(ONE, last=0, eval_every=5))
    world.begin()
    world.evaluate(EvaluationId(0, 0, "e", 1))
    land_first(world)
    world.train()
    world.save(BatchId(0, 0))
    assert world.finish is None
    assert ev.Evaluate(EvaluationId(0, 1, "e", 2)) in world.sync("e")
    world.evaluate(EvaluationId(0, 1, "e", 2))
    assert world.finish == ev.Finish("done", "the last batch is trained, at version 1")


def test_an_evaluation_that_died_with_its_engine_is_done_by_another() -> None:
    world = World(replace(TWO, eval_every=5, engine_restarts=1))
    world.begin()
    assert ev.Evaluate(EvaluationId(0, 0, "b", 2)) in world.engine_down("a")


def test_a_lost_evaluation_is_taken_by_a_busy_engine_as_soon_as_it_is_free() -> None:
    """b dies while it evaluates version 1; a is evaluating version 2 and does it again for version 1 without waiting for b."""
    world = World(replace(TWO, eval_every=1, last=1, engine_restarts=1))
    world.begin()
    land_first(world)
    world.train()
    world.sync("b")  # evaluates version 1
    land_first(world)
    world.evaluate(EvaluationId(0, 0, "a", 1))
    world.train()
    world.fail_sync("a")
    assert ev.Evaluate(EvaluationId(0, 2, "a", 3)) in world.sync("a")
    world.engine_down("b")
    assert ev.Evaluate(EvaluationId(0, 2, "a", 4)) in world.evaluate(EvaluationId(0, 2, "a", 3))


def test_an_evaluation_for_two_versions_that_failed_is_repeated_once_for_both() -> None:
    """The engine dies while it evaluates version 0; when it is back it holds version 1, which is due as well."""
    world = World(replace(ONE, eval_every=1, last=0, engine_restarts=1))
    world.begin()
    land_first(world)
    world.engine_down("e")
    world.train()
    world.save(BatchId(0, 0))
    world.engine_up("e")
    assert ev.Evaluate(EvaluationId(0, 1, "e", 2)) in world.sync("e")
    assert ev.Evaluate(EvaluationId(0, 1, "e", 3)) in world.fail_evaluation(EvaluationId(0, 1, "e", 2))
    world.evaluate(EvaluationId(0, 1, "e", 3))
    assert world.finish == ev.Finish("done", "the last batch is trained, at version 1")


def test_an_evaluation_that_keeps_failing_ends_the_run() -> None:
    world = World(replace(ONE, eval_every=5, max_attempts=2))
    world.begin()
    assert ev.Evaluate(EvaluationId(0, 0, "e", 2)) in world.fail_evaluation(EvaluationId(0, 0, "e", 1))
    world.fail_evaluation(EvaluationId(0, 0, "e", 2))
    assert world.finish == ev.Finish("failed", "version 0 could not be evaluated in 2 attempts, the last one: scorer crashed")


def test_the_trajectories_of_a_dead_engine_move_to_another() -> None:
    world = World(replace(TWO, groups_per_batch=2, engine_restarts=1))
    world.begin()
    assert [len(world.hosts[name].running) for name in "ab"] == [2, 0]
    actions = world.engine_down("a")
    assert [str(action.trajectory) for action in actions if isinstance(action, ev.Dispatch)] == ["0.0.1", "1.0.1"]
    assert [action for action in actions if isinstance(action, ev.Start)] == [ev.Start("a", 2, after=1.0)]


def test_an_engine_that_dies_too_often_ends_the_run_with_its_name() -> None:
    world = World(replace(ONE, engine_restarts=0))
    world.begin()
    world.engine_down("e")
    assert world.finish == ev.Finish("failed", "engine e went down: killed (restarted 0 times, engine_restarts=0)")


def test_a_restarted_engine_is_synced_before_it_serves() -> None:
    world = World(replace(ONE, engine_restarts=1))
    world.begin()
    world.engine_down("e")
    assert syncs(world.engine_up("e")) == [SyncId(0, 0, "e", 2)]
    assert [str(action.trajectory) for action in world.sync("e") if isinstance(action, ev.Dispatch)] == ["0.0.1"]


def test_trainers_that_die_too_often_end_the_run_with_the_name_of_the_last_one() -> None:
    world = World(replace(ONE, save_every=1, trainer_restarts=0))
    world.begin()
    land_first(world)
    world.train()
    world.save(BatchId(0, 0))
    world.trainer_down("actor")
    assert world.finish == ev.Finish(
        "failed",
        "worker actor went down: killed (rolled back 0 times to the checkpoint of version 1, trainer_restarts=0). "
        "Weights up to version 1 died with it",
    )


def test_a_batch_that_cannot_be_trained_ends_the_run() -> None:
    world = World(ONE)
    world.begin()
    land_first(world)
    world.harm += 1
    assert world.feed(ev.TrainFailed(BatchId(0, 0), "ValueError: no values")) == [
        ev.Finish("failed", "batch 0 could not be trained: ValueError: no values")
    ]


def test_an_engine_that_takes_nothing_is_waited_for_by_name_and_then_started_anew() -> None:
    world = World(ONE)
    world.begin(capacity=0)
    assert "engine room e" in world.timers
    world.hosts["e"].capacity = 1
    assert ev.Dispatch(FIRST, "e", 0) in world.feed(ev.Free("e", 1))
    assert "engine room e" not in world.timers
    world.hosts["e"].capacity = 0
    assert ev.Arm("engine room e", 900.0) in world.feed(ev.Free("e", 0))
    assert world.feed(ev.Free("e", 0)) == []
    actions = world.run_out("engine room e")
    assert ev.Start("e", 2, 1.0) in actions
    assert ev.Abort(FIRST) in actions


def come_back(world: World, name: str) -> None:
    world.engine_down(name)
    world.engine_up(name)
    world.sync(name)


def test_deaths_of_an_engine_that_has_served_for_long_since_do_not_count() -> None:
    """Two restarts; what was before three trained batches is forgotten."""
    world = World(replace(ONE, engine_restarts=2, engine_recovery=3, last=99, max_attempts=9))
    world.begin()
    for _ in range(3):
        come_back(world, "e")
        come_back(world, "e")
        for _ in range(3):
            land_first(world)
            world.train()
            world.sync("e")
    come_back(world, "e")
    come_back(world, "e")
    land_first(world)
    world.train()
    world.sync("e")
    world.engine_down("e")
    assert world.finish == ev.Finish("failed", "engine e went down: killed (restarted 2 times, engine_restarts=2)")


def test_an_attempt_that_is_lost_with_its_engine_is_none_of_those_that_failed() -> None:
    """Two may fail; one fails and one is lost: it goes on. Another one fails: that was two."""
    world = World(replace(ONE, max_attempts=2))
    world.begin()
    world.fail(FIRST)
    come_back(world, "e")
    assert world.running() == [TrajectoryId(0, 0, 2)]
    actions = world.fail(TrajectoryId(0, 0, 2))
    said = "trajectory 0.0.2 failed 2 times, the last time: the environment crashed"
    assert [(action.reason, action.detail) for action in actions if isinstance(action, ev.Drop)] == [("attempts", said)]


def test_the_end_of_a_process_that_played_a_trajectory_is_no_failure_of_it() -> None:
    """As the end of its engine: it fails once and is lost once, and goes on."""
    world = World(replace(ONE, max_attempts=2))
    world.begin()
    world.fail(FIRST)
    actions = world.fail(TrajectoryId(0, 0, 1), lost=True)
    assert not [action for action in actions if isinstance(action, ev.Drop)]
    assert TrajectoryId(0, 0, 2) in world.running()
    actions = world.fail(TrajectoryId(0, 0, 2), lost=True)
    said = "under trajectory 0.0.2 engines went down 2 times, the last time: a process died"
    assert [(action.reason, action.detail) for action in actions if isinstance(action, ev.Drop)] == [("engine", said)]


def test_a_trajectory_under_which_engines_die_again_and_again_is_dropped_by_that_name() -> None:
    world = World(replace(ONE, max_attempts=2))
    world.begin()
    come_back(world, "e")
    actions = world.engine_down("e")
    said = "under trajectory 0.0.1 engines went down 2 times, the last time: engine e went down: killed"
    assert [(action.reason, action.detail) for action in actions if isinstance(action, ev.Drop)] == [("engine", said)]
