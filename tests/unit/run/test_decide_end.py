"""Saves, stops, timeouts, events of the past: how a run ends and what cannot end it."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import msgspec
import pytest
from decide_world import World

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import HANDLERS, decide
from rlflow.run.controller.ids import BatchId, EvaluationId, GroupId, SyncId, TrajectoryId
from rlflow.run.controller.resume import resume
from rlflow.run.controller.schedule import Config, Hop
from rlflow.run.controller.waits import WAITS

ONE = Config(n=1, groups_per_batch=1, max_lag=0, last=9, engines=("e",))
FIRST = TrajectoryId(0, 0, 0)


def land_first(world: World) -> list[ev.AnyAction]:
    return world.land(world.running()[0])


def syncs(actions: list[ev.AnyAction]) -> list[SyncId]:
    return [action.sync for action in actions if isinstance(action, ev.Sync)]


def test_a_save_that_fails_is_followed_by_the_next_one_that_is_due() -> None:
    world = World(replace(ONE, save_every=2, last=3))
    world.begin()
    for version in range(1, 5):
        land_first(world)
        world.train()
        if version == 2:
            world.fail_save(BatchId(0, 1))
        if version < 4:
            world.sync("e")
    world.save(BatchId(0, 3))
    assert world.saved == [4]
    assert world.finish == ev.Finish("done", "the last batch is trained, at version 4")


def test_a_version_that_is_evaluated_is_saved_where_the_best_one_is_to_be_kept() -> None:
    for keep_best, expected in ((True, [2, 3, 4]), (False, [3, 4])):
        world = World(replace(ONE, save_every=3, eval_every=2, keep_best=keep_best, last=3))
        world.begin()
        world.evaluate(EvaluationId(0, 0, "e", 1))
        for version in range(1, 5):
            land_first(world)
            saves = [action.batch for action in world.train() if isinstance(action, ev.Save)]
            for batch in saves:
                world.save(batch)
            if version < 4 or not world.finish:
                world.sync("e")
            for evaluation in list(world.state.evaluations):
                world.evaluate(evaluation)
        assert world.saved == expected


def test_the_last_save_is_tried_again_and_then_ends_the_run() -> None:
    world = World(replace(ONE, last=0, max_save_attempts=2))
    world.begin()
    land_first(world)
    world.train()
    assert ev.Save(BatchId(0, 0)) in world.fail_save(BatchId(0, 0))
    world.fail_save(BatchId(0, 0))
    assert world.finish == ev.Finish("failed", "2 saves in a row failed at the end, the last one of version 1: disk full")


def test_saves_that_keep_failing_are_warnings_until_too_many_rows_are_kept() -> None:
    world = World(replace(ONE, save_every=1, max_uncovered_rows=3))
    world.begin()
    for batch in range(3):
        land_first(world)
        world.train()
        warned = [action.what for action in world.fail_save(BatchId(0, batch)) if isinstance(action, ev.Warn)]
        rows = "rows are kept since the checkpoint of version 0"
        assert warned == [f"version {batch + 1} could not be saved: disk full ({batch + 1} in a row; {batch + 1} {rows})"]
        world.sync("e")
    assert world.state.uncovered_rows == 3
    land_first(world)
    world.train()
    assert world.finish == ev.Finish(
        "failed",
        "4 rows made since the checkpoint of version 0 are kept for a rollback, more than max_uncovered_rows=3: "
        "save more often (3 saves in a row failed)",
    )


def test_a_save_covers_what_was_trained_when_it_was_asked_for() -> None:
    """Version 1 is being written while batch 1 is trained: when it is done, batch 0 is covered and batch 1 is not."""
    world = World(replace(ONE, save_every=1, max_lag=1))
    world.begin()
    land_first(world)
    world.train()
    world.sync("e")
    land_first(world)
    world.train()
    assert ev.Recycle((0,)) in world.save(BatchId(0, 0))
    assert ev.Recycle((1,)) in world.save(BatchId(0, 1))


def test_a_drop_is_covered_by_a_checkpoint_of_the_version_at_which_it_was_made() -> None:
    """uid 1 is dropped at version 1, after its save was asked for and before it is done; uid 2 after it is done."""
    world = World(replace(ONE, save_every=1, max_attempts=1))
    world.begin()
    land_first(world)
    world.train()
    world.sync("e")
    assert not any(isinstance(action, ev.Recycle) for action in world.fail(TrajectoryId(1, 0, 0)))
    assert ev.Recycle((0, 1)) in world.save(BatchId(0, 0))
    assert ev.Recycle((2,)) in world.fail(TrajectoryId(2, 0, 0))


def test_stop_finishes_the_running_train_step_and_saves_it() -> None:
    world = World(replace(ONE, max_lag=1))
    world.begin()
    land_first(world)
    assert world.stop() == []
    actions = world.train()
    assert [action for action in actions if not isinstance(action, ev.Arm | ev.Disarm)] == [ev.Save(BatchId(0, 0))]
    world.save(BatchId(0, 0))
    assert world.finish == ev.Finish("stopped", "stopped at version 1")


def test_stop_without_anything_trained_ends_at_once() -> None:
    world = World(ONE)
    world.begin()
    assert world.stop() == [ev.Finish("stopped", "stopped at version 0")]


def test_a_second_stop_waits_for_nothing() -> None:
    world = World(ONE)
    world.begin()
    land_first(world)
    world.stop()
    assert world.stop() == [ev.Finish("stopped", "stopped at once, by a second stop")]


def test_a_stop_does_not_start_the_queued_batch() -> None:
    world = World(replace(ONE, max_lag=2, queue=1))
    world.begin()
    land_first(world)
    land_first(world)
    world.stop()
    world.train()
    assert world.training is None
    world.save(BatchId(0, 0))
    assert world.finish == ev.Finish("stopped", "stopped at version 1")


def test_an_engine_that_dies_after_stop_does_not_fail_the_run() -> None:
    """The terminal sends its signal to the engines too."""
    world = World(ONE)
    world.begin()
    land_first(world)
    world.stop()
    assert not any(isinstance(action, ev.Finish | ev.Start) for action in world.engine_down("e"))


@pytest.mark.parametrize("name", ["worker start", "train step 0:0"])
def test_a_trainer_that_hangs_is_a_rollback_and_then_ends_the_run_with_its_name(name: str) -> None:
    world = World(replace(ONE, trainer_restarts=1, timeouts={"worker start": 7.0, "train step": 7.0}))
    world.feed(ev.RunStarted())
    if name == "train step 0:0":
        world.come_up()
        world.engine_up("e")
        world.sync("e")
        land_first(world)
    assert ev.StartWorkers(2, None, after=1.0) in world.run_out(name)
    world.run_out("worker start")
    assert world.finish is not None
    assert world.finish.why == (
        "timeout: worker start waited 7 s for WorkersUp (rolled back 1 times to the checkpoint that the run began with, "
        "trainer_restarts=1). Weights up to version 0 died with it"
    )


def test_an_evaluation_that_hangs_is_done_again() -> None:
    world = World(replace(ONE, eval_every=1))
    world.begin()
    assert ev.Evaluate(EvaluationId(0, 0, "e", 2)) in world.run_out("evaluation 0:0 on e (attempt 1)")


def test_a_save_that_hangs_is_a_save_that_failed() -> None:
    world = World(replace(ONE, save_every=1))
    world.begin()
    land_first(world)
    world.train()
    warned = [action.what for action in world.run_out("save 0:0") if isinstance(action, ev.Warn)]
    assert warned[0].startswith("version 1 could not be saved: timeout: save 0:0 waited 1800 s for Saved or SaveFailed (1 in a row; ")


def test_Q2_a_trajectory_that_never_returns_is_sent_again() -> None:
    world = World(ONE)
    world.begin()
    actions = world.run_out("trajectory 0.0.0")
    assert ev.Abort(FIRST) in actions
    assert ev.Dispatch(TrajectoryId(0, 0, 1), "e", 0) in actions


def test_a_reward_that_never_returns_costs_its_group() -> None:
    world = World(replace(ONE, hops=(Hop("reward"),)))
    world.begin()
    land_first(world)
    drop = next(action for action in world.run_out("operator reward of trajectory 0.0.0") if isinstance(action, ev.Drop))
    assert (drop.group, drop.reason) == (GroupId(0, 0), "reward")
    assert drop.detail == "timeout: operator reward of trajectory 0.0.0 waited 600 s for Ran"


def test_an_engine_that_does_not_come_up_is_started_again_and_then_named() -> None:
    world = World(replace(ONE, engine_restarts=1))
    world.feed(ev.RunStarted())
    assert ev.Start("e", 2, after=1.0) in world.run_out("engine start e")
    world.run_out("engine start e")
    assert world.finish is not None
    assert world.finish.why.startswith("engine e went down: timeout: engine start e waited 300 s for EngineUp")


def test_a_sync_that_never_returns_is_tried_again() -> None:
    world = World(ONE)
    world.feed(ev.RunStarted())
    world.come_up()
    world.engine_up("e")
    assert syncs(world.run_out("sync 0:0 to e (attempt 1)")) == [SyncId(0, 0, "e", 2)]


OLD = [
    ev.Landed(TrajectoryId(0, 0, 0), 1, ()),
    ev.Failed(TrajectoryId(0, 0, 7), "late"),
    ev.Landed(TrajectoryId(99, 0, 0), 1, ()),
    ev.Landed(TrajectoryId(0, 5, 0), 1, ()),
    ev.Ran("reward", TrajectoryId(0, 0, 1)),
    ev.Ran("filter", GroupId(0, 0)),
    ev.Trained(BatchId(-1, 0)),
    ev.Trained(BatchId(0, 1)),
    ev.Synced(SyncId(0, 0, "e", 1)),
    ev.Synced(SyncId(-1, 0, "e", 2)),
    ev.SyncFailed(SyncId(0, 0, "nobody", 1), "late"),
    ev.Evaluated(EvaluationId(0, 0, "e", 9)),
    ev.Saved(BatchId(0, 0)),
    ev.EngineUp("e", 1, 8),
    ev.EngineDown("e", 0, "late"),
    ev.Timeout("trajectory 0.0.0"),
    ev.WorkersUp(1),
    ev.RunStarted(),
]


@pytest.mark.parametrize("event", OLD, ids=lambda event: type(event).__name__)
def test_an_event_of_the_past_changes_nothing_and_is_counted(event: ev.AnyEvent) -> None:
    world = World(ONE)
    world.begin()
    world.fail(FIRST)  # attempt 1 of uid 0 runs now
    world.replay(event)
    assert world.state.totals.ignored == {type(event).__name__: 1}


def test_after_finish_nothing_is_asked_for() -> None:
    world = World(ONE)
    world.begin()
    world.stop()
    assert decide(world.state, ev.Landed(FIRST, 1, ())) == []


def test_the_same_events_give_the_same_actions_and_a_copy_goes_its_own_way() -> None:
    world = World(replace(ONE, engines=("a", "b"), n=2, groups_per_batch=2, max_lag=1, eval_every=1))
    world.begin()
    twin = copy.deepcopy(world)
    world.finish_fairly(random.Random(3))
    assert twin.finish is None
    twin.finish_fairly(random.Random(3))
    assert twin.history == world.history
    assert twin.state.totals == world.state.totals


def test_events_and_actions_survive_the_wire() -> None:
    world = World(replace(ONE, engines=("a", "b"), n=2, hops=(Hop("reward"), Hop("filter", per="group")), eval_every=1, last=2))
    heard: list[ev.AnyEvent] = [*OLD, ev.Free("e", 3), ev.Stop(), ev.SourceEnd(), ev.TrainerDown("actor", 1, "x")]
    heard += [ev.TrainFailed(BatchId(0, 0), "x"), ev.SaveFailed(BatchId(0, 0), "x"), ev.EvaluationFailed(EvaluationId(0, 0, "e", 9), "x")]
    asked: list[ev.AnyAction] = [ev.Drop(GroupId(0, 1), "filter", "x"), ev.Abort(FIRST), *world.begin()]
    asked += [ev.Run("filter", GroupId(0, 2)), ev.Train(BatchId(0, 0), (0,), (FIRST,)), ev.Save(BatchId(0, 1)), ev.Finish("done", "x")]
    heard += [ev.Turn(FIRST, 1), ev.GroupFailed(BatchId(0, 0), 0, "x"), ev.Trained(BatchId(0, 0), ((0, 4, 2),))]
    asked += [ev.Continue(FIRST, 1, "a"), ev.Recycle((0, 1)), ev.Warn("x"), ev.Void(EvaluationId(0, 0, "e", 9))]
    for event in heard:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=ev.AnyEvent) == event
    for action in asked:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(action), type=ev.AnyAction) == action


def test_every_event_has_a_handler() -> None:
    assert set(HANDLERS) == set(ev.Event.__subclasses__())


def test_every_wait_is_positive_and_ends_in_something() -> None:
    assert {wait.then for wait in WAITS.values()} == {"retry", "drop group", "engine down", "rollback"}
    assert all(wait.seconds > 0 and wait.waits_for for wait in WAITS.values())


def test_a_checkpoint_covers_a_large_batch_in_pieces_and_a_kill_between_them_loses_none() -> None:
    """P = 5, two groups a transition: Saved covers 0 and 1, the next event 2 and 3, a resume the rest."""
    config = replace(ONE, groups_per_batch=5, max_lag=1, save_every=1, covered_at_once=2)
    world = World(config)
    world.begin(capacity=20)
    for uid in range(5):
        world.land(TrajectoryId(uid, 0, 0))
    world.train()
    assert ev.Recycle((0, 1)) in world.save(BatchId(0, 0))
    assert list(world.tables.finished) == [(0, 2)]
    assert ev.Recycle((2, 3)) in world.sync("e")
    assert (list(world.tables.finished), sorted(world.tables.batches)) == ([(0, 4)], [(0, 0)])
    state = resume(config, world.tables)
    world.tables.apply(state.journal)
    assert (list(world.tables.finished), world.tables.batches, world.tables.kept.groups) == ([(0, 5)], {}, 5)


def test_rows_that_pile_up_without_a_save_are_saved_at_half_of_what_may_be_kept() -> None:
    world = World(replace(ONE, max_uncovered_rows=6))
    world.begin()
    for batch in range(4):
        land_first(world)
        saves = [action.batch for action in world.train() if isinstance(action, ev.Save)]
        assert saves == ([BatchId(0, 3)] if batch == 3 else [])
        world.sync("e")
    world.save(BatchId(0, 3))
    assert world.state.uncovered_rows == 0


def test_a_group_without_rows_is_kept_too() -> None:
    """Dropped before anything landed, and undone by a rollback: it counts for the bound."""
    world = World(replace(ONE, max_attempts=1))
    world.begin()
    for uid in range(3):
        land_first(world) if uid == 0 else world.fail(world.running()[0])
        if uid == 0:
            world.train()
            world.sync("e")
    assert world.state.uncovered_rows == 3


def test_a_source_that_ends_after_a_rollback_has_the_prompts_that_were_drawn_before_it() -> None:
    """Uids 0 to 3 were drawn; the rollback leaves 0 and 1, which were drawn at version 0. There are four, not two."""
    world = World(replace(ONE, max_lag=1))
    world.begin(capacity=2)
    land_first(world)
    world.train()
    world.sync("e")
    assert sorted(world.tags) == [0, 1, 2]
    world.trainer_down("actor")
    assert world.state.next_uid == 2
    tables = copy.deepcopy(world.tables)
    decide(world.state, ev.SourceEnd())
    resumed = resume(world.config, tables)
    decide(resumed, ev.SourceEnd())
    assert (world.state.source_end, resumed.source_end) == (3, 3)
