"""What a resume and a rollback keep, take back and throw away: the rules one by one, with the numbers of their examples."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from decide_world import World

from rlflow.errors import UsageError
from rlflow.run.controller import events as ev
from rlflow.run.controller.books import Books
from rlflow.run.controller.decide import decide
from rlflow.run.controller.dispatch import admissible
from rlflow.run.controller.ids import BatchId, EvaluationId, Span, TrajectoryId
from rlflow.run.controller.journal import (
    BatchRow,
    Change,
    Counters,
    EvaluationRow,
    Finished,
    GroupRow,
    Pending,
    SavedRow,
    TimelineRow,
    TrajectoryRow,
)
from rlflow.run.controller.resume import resume
from rlflow.run.controller.schedule import Config, Hop, Origin
from rlflow.run.controller.state import Group, State, Trajectory
from rlflow.run.controller.timelines import without_seat

ONE = Config(n=1, groups_per_batch=1, max_lag=0, last=9, engines=("e",))
TWO = replace(ONE, n=2, groups_per_batch=2, max_lag=2)


def group(uid: int, tag: int, state: str = "running", version: int = -1, **more: object) -> GroupRow:
    return GroupRow(uid, tag, state, -1, 0, 0, version, **more)  # type: ignore[arg-type]


def landed(uid: int, traj_uid: int, *versions: int, attempt: int = 0) -> TrajectoryRow:
    spans = tuple(Span(version, i, i + 1) for i, version in enumerate(versions))
    return TrajectoryRow(uid, traj_uid, attempt, versions[0], "landed", "e", 1, spans, 0)


def running(uid: int, traj_uid: int, attempt: int = 0) -> TrajectoryRow:
    return TrajectoryRow(uid, traj_uid, attempt, 0, "running", "e", 0, (), 0)


def saved_at(version: int, *rows: Change, config: Config = TWO, finished: int = 0, highest_attempt: int = 0) -> Books:
    """Books of timeline 0 whose newest checkpoint has this version; uids below ``finished`` were trained long ago."""
    books = Books()
    books.apply([TimelineRow(0, 0, config.n, config.groups_per_batch, config.max_lag, config.last)])
    books.apply([Counters(0, 0, highest_attempt, -1)])
    books.apply([*(group(uid, 0, "trained", version) for uid in range(finished)), Finished(tuple(range(finished)))])
    books.apply([*([SavedRow(0, version)] if version else []), *rows])
    return books


def trajectories(state: State, uid: int) -> list[tuple[str, int]]:
    return [(trajectory.state, trajectory.attempt) for trajectory in state.groups[uid].trajectories]


def test_empty_books_are_a_new_run() -> None:
    state = resume(ONE, Books())
    assert (state.timeline, state.published, state.next_uid, state.checkpoint, state.journal) == (0, 0, 0, None, [])


def test_V1_a_resume_at_version_100_has_room_for_24_groups_not_824() -> None:
    config = replace(ONE, groups_per_batch=8, max_lag=2, last=999)
    state = resume(config, saved_at(100, config=config, finished=800))
    assert (state.published, state.next_batch, state.next_uid) == (100, 100, 800)
    assert admissible(state) == 24


def test_a_resume_is_a_new_timeline_that_begins_at_the_newest_checkpoint() -> None:
    state = resume(TWO, saved_at(5))
    assert (state.timeline, state.published, state.saved, state.checkpoint) == (1, 5, 5, 5)
    assert state.journal == [TimelineRow(1, 5, 2, 2, 2, 9, (), "wait"), Counters(0, 1, 1, -1)]
    assert ev.StartWorkers(1, 5) in decide(state, ev.RunStarted())


def test_a_run_that_saved_nothing_begins_at_what_it_began_with() -> None:
    state = resume(TWO, saved_at(0))
    assert (state.timeline, state.published, state.checkpoint) == (1, 0, None)
    assert ev.StartWorkers(1, None) in decide(state, ev.RunStarted())


def test_n_must_be_that_of_the_groups() -> None:
    with pytest.raises(UsageError, match=r"n=3: the groups of this run have n=2 trajectories each; resume it with n=2"):
        resume(replace(TWO, n=3), saved_at(5))


def test_batches_from_the_checkpoint_on_are_undone_and_their_groups_live() -> None:
    books = saved_at(
        5, group(7, 4, "trained", 6), landed(7, 0, 4), landed(7, 1, 4, 5), group(8, 5, "consumed"), landed(8, 0, 5), landed(8, 1, 5),
        BatchRow(0, 5, "trained", (7,)), BatchRow(0, 6, "training", (8,)),
    )  # fmt: skip
    state = resume(TWO, books)
    assert [change for change in state.journal if isinstance(change, BatchRow)] == [
        BatchRow(0, 5, "undone", (7,)),
        BatchRow(0, 6, "undone", (8,)),
    ]
    assert {uid: live.state for uid, live in state.groups.items()} == {7: "ready", 8: "ready"}
    assert (state.ready, state.waiting, state.next_batch) == (2, 2, 5)


def test_a_group_with_a_tag_up_to_the_checkpoint_keeps_it_and_its_rows_of_versions_up_to_it() -> None:
    books = saved_at(5, group(7, 3, "landed"), landed(7, 0, 3, 4, 5), landed(7, 1, 5, 6, attempt=2), highest_attempt=4)
    state = resume(TWO, books)
    assert (state.groups[7].tag, state.groups[7].state) == (3, "running")
    assert trajectories(state, 7) == [("landed", 0), ("queued", 5)]
    assert state.queued == [(3, 7, 1)]


def test_what_ran_or_was_never_sent_starts_as_an_attempt_that_there_never_was() -> None:
    state = resume(TWO, saved_at(5, group(7, 5), running(7, 0, attempt=3), highest_attempt=3))
    assert trajectories(state, 7) == [("queued", 4), ("queued", 4)]
    assert state.attempt_floor == 4


def test_a_group_with_a_later_tag_is_pending_and_drawn_again_before_all_others() -> None:
    books = saved_at(5, group(0, 6), landed(0, 0, 6), landed(0, 1, 6), group(1, 5), running(1, 0), finished=0)
    state = resume(TWO, books)
    assert (list(state.groups), state.pending, state.next_uid) == ([1], [0], 2)
    assert Pending((0,)) in state.journal
    assert ev.Recycle((0,)) in decide(state, ev.RunStarted())


def test_the_next_prompt_is_the_first_that_is_neither_finished_nor_live() -> None:
    """Finished: 0 1 2 5; live: 4; 3 was pending when the run was killed."""
    finished = [group(5, 0, "trained", 5), Finished((5,))]
    state = resume(TWO, saved_at(5, *finished, group(4, 5), running(4, 0), finished=3))
    assert (state.pending, state.next_uid) == ([3], 6)


def test_no_cursor_is_left_behind_by_prompts_at_the_top() -> None:
    state = resume(TWO, saved_at(5, group(3, 6), group(4, 7), finished=3))
    assert (state.pending, state.next_uid) == ([], 3)


def test_drops_made_after_the_checkpoint_are_undone_and_others_stay() -> None:
    books = saved_at(
        5, group(3, 5, "dropped", 6, reason="filter"), landed(3, 0, 5), landed(3, 1, 5), group(4, 5, "dropped", 5, reason="filter"),
        finished=3,
    )  # fmt: skip
    state = resume(TWO, books)
    assert state.groups[3].state == "ready"
    assert Finished((4,)) in state.journal
    assert state.totals.dropped == {"filter": 1}


def test_groups_without_a_seat_go_running_first_and_latest_first() -> None:
    """L = 1, P = 1, c = 5: one seat for those due by batch 5 (tag 4), two for those due by batch 6 (tag 5)."""
    groups = [Group(0, 4, [], "ready"), Group(1, 4, [], "ready"), Group(2, 5, [], "ready"), Group(3, 5, [], "running")]
    assert without_seat(groups, checkpoint=5, max_lag=1, groups_per_batch=1) == {1, 3}


def test_groups_whose_deadline_has_passed_have_no_seat_at_all() -> None:
    """A smaller L: tag 2 could still board in batch 5 with L = 3, and was due in batch 3 with L = 1."""
    books = saved_at(5, group(7, 2, "ready"), landed(7, 0, 2), landed(7, 1, 2), config=replace(TWO, max_lag=3), finished=7)
    assert list(resume(replace(TWO, max_lag=3), books).groups) == [7]
    assert list(resume(replace(TWO, max_lag=1), books).groups) == []


def test_a_smaller_P_sends_the_excess_back() -> None:
    rows = [row for uid in range(4) for row in (group(uid, 5, "ready"), landed(uid, 0, 5), landed(uid, 1, 5))]
    books = saved_at(5, *rows, config=replace(TWO, max_lag=1))
    assert list(resume(replace(TWO, max_lag=1), books).groups) == [0, 1, 2, 3]
    state = resume(replace(TWO, max_lag=1, groups_per_batch=1), books)
    assert (list(state.groups), state.next_uid) == ([0, 1], 2)


def test_another_last_and_other_engines_are_taken_as_they_are() -> None:
    config = replace(TWO, last=20, engines=("a", "b"))
    state = resume(config, saved_at(10))
    assert [action.engine for action in decide(state, ev.RunStarted()) if isinstance(action, ev.Start)] == ["a", "b"]
    assert not state.finished


def test_what_operators_made_stays_with_a_whole_group_and_the_same_operators() -> None:
    hops = (Hop("reward", "group"), Hop("filter", "group"))
    books = saved_at(5, GroupRow(7, 5, "landed", -1, 0, 1), landed(7, 0, 5), landed(7, 1, 5))
    books.apply([TimelineRow(0, 0, 2, 2, 2, 9, ("reward", "filter"))])
    assert resume(replace(TWO, hops=hops), books).groups[7].hops_done == 1
    assert resume(replace(TWO, hops=hops[1:]), books).groups[7].hops_done == 0


def test_operators_that_have_not_returned_are_asked_when_the_workers_are_up() -> None:
    config = replace(TWO, hops=(Hop("score"), Hop("filter", "group")))
    rows = [group(7, 5, "landed"), landed(7, 0, 5), landed(7, 1, 5)]
    state = resume(config, saved_at(5, *rows, config=config))
    assert not any(isinstance(action, ev.Run) for action in decide(state, ev.RunStarted()))
    asked = [action.unit for action in decide(state, ev.WorkersUp(1)) if isinstance(action, ev.Run)]
    assert asked == [TrajectoryId(7, 0, 0), TrajectoryId(7, 1, 0)]


def test_no_batch_is_trained_before_the_workers_are_up() -> None:
    rows = [row for uid in (0, 1) for row in (group(uid, 5, "ready"), landed(uid, 0, 5), landed(uid, 1, 5))]
    state = resume(TWO, saved_at(5, *rows))
    assert not any(isinstance(action, ev.Train) for action in decide(state, ev.RunStarted()))
    trained = [action for action in decide(state, ev.WorkersUp(1)) if isinstance(action, ev.Train)]
    assert [(action.batch, action.groups) for action in trained] == [(BatchId(1, 5), (0, 1))]


@pytest.mark.parametrize(
    ("row", "due"),
    [
        (EvaluationRow(5, "due", 0), [5]),
        (EvaluationRow(4, "pinned", 0, 4), [4]),
        (EvaluationRow(4, "scored", 0, 6, 0.5), [4]),
        (EvaluationRow(4, "scored", 0, 4, 0.5), []),
        (EvaluationRow(6, "due", 0), []),
    ],
)
def test_evaluations_unfinished_or_of_a_version_that_died_are_due_again(row: EvaluationRow, due: list[int]) -> None:
    assert list(resume(replace(TWO, eval_every=1), saved_at(5, row)).evaluations_due) == due


def test_a_finished_run_goes_on_with_a_larger_last_and_trains_what_was_live() -> None:
    """P = 1, L = 1: at the end uid 2 has landed without a seat."""
    world = World(replace(ONE, last=1, max_lag=1, oversample=1))
    world.begin()
    while world.finish is None:
        world.answer(next(wait for wait in world.outstanding() if not isinstance(wait, TrajectoryId) or wait.uid < 2), random.Random(0))
    assert world.finish.outcome == "done"
    live = set(world.state.groups)
    state = resume(replace(ONE, last=2, max_lag=1), world.tables)
    assert (state.published, set(state.groups)) == (2, live)
    assert not state.finished


def picture(state: State) -> dict[str, object]:
    """What a timeline is begun with."""
    return {
        "counters": (state.timeline, state.published, state.next_batch, state.next_uid, state.pending, state.attempt_floor),
        "groups": {uid: (live.tag, live.state, live.landed, live.scored, live.hops_done) for uid, live in sorted(state.groups.items())},
        "trajectories": [whole(t) for _, live in sorted(state.groups.items()) for t in live.trajectories],
        "waiting": (state.buffer.waiting_counts(), state.buffer.ready_counts(), sorted(state.queued)),
        "saved": (state.saved, state.checkpoint, len(state.uncovered), state.uncovered_rows, len(state.uncovered_batches)),
        "evaluations": (sorted(state.evaluations_due), state.evaluated, state.covered_evaluation, state.scored),
        "highest": (state.highest_attempt, state.source_end, state.source_exhausted),
        "watermark": state.watermark.value,
    }


def whole(trajectory: Trajectory) -> tuple[object, ...]:
    return trajectory.id, trajectory.state, trajectory.tries, trajectory.rows, trajectory.spans, trajectory.hops_done


def scripted(rng: random.Random, check: Callable[[World], None], origin: Origin | None = None) -> World:
    """A small run with everything in it: failures, drops, evaluations, saves in flight, a queue; checked at every transaction boundary."""
    start = (origin or Origin()).version
    config = replace(
        TWO, max_lag=rng.randint(0, 2), last=start + 5, hops=(Hop("reward"), Hop("filter", "group")), eval_every=2, save_every=2,
        queue=rng.randint(0, 1), oversample=rng.randint(0, 1), engines=("a", "b"), engine_restarts=99, trainer_restarts=99,
        max_attempts=2, max_save_attempts=99, max_sync_attempts=99, max_drops=9999,
    )  # fmt: skip
    world = World(config, origin)
    world.feed(ev.RunStarted())
    while world.finish is None:
        check(world)
        wait = rng.choice(world.outstanding())
        if rng.random() < 0.12 and not isinstance(wait, EvaluationId):
            world.refuse(wait)
        else:
            world.answer(wait, rng)
    return world


@pytest.mark.parametrize("seed", range(12))
def test_a_rollback_in_place_is_a_resume_from_the_ledger_at_every_transaction_boundary(seed: int) -> None:
    def compare(world: World) -> None:
        resumed = resume(world.config, copy.deepcopy(world.tables))
        tables, twin = copy.deepcopy(world.tables), copy.deepcopy(world.state)
        decide(twin, ev.TrainerDown("actor", twin.workers_start, "killed"))
        assert picture(twin) == picture(resumed)
        tables.apply(twin.journal)
        world_after = copy.deepcopy(world.tables)
        world_after.apply(resumed.journal)
        assert tables == world_after

    world = scripted(random.Random(seed), compare)
    assert world.finish is not None
    assert world.finish.outcome == "done"


@pytest.mark.parametrize("start", [2**31 - 2, 2**53 - 2])
def test_counters_do_not_wrap_in_a_resume(start: int) -> None:
    origin = Origin(timeline=start, version=start, uid=start, attempt=start)

    def compare(world: World) -> None:
        state = resume(world.config, copy.deepcopy(world.tables))
        assert state.timeline == world.state.timeline + 1
        assert state.attempt_floor > start
        assert all(uid >= start for uid in (*state.groups, *state.pending, state.next_uid))

    scripted(random.Random(1), compare, origin)


@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_at_every_transaction_boundary_comes_to_the_same_end(seed: int) -> None:
    """Resumed from each boundary with everything well, every batch up to the last is trained and no prompt twice."""

    def go_on(world: World) -> None:
        tables, state = killed_and_resumed(world, world.config)
        assert (state.published, tables.kept.groups) == (6, 12)
        check_prompts(tables, state)

    scripted(random.Random(100 + seed), go_on)


@pytest.mark.parametrize("seed", range(6))
def test_a_resume_with_other_numbers_trains_every_batch_that_is_left(seed: int) -> None:
    rng = random.Random(200 + seed)

    def go_on(world: World) -> None:
        config = replace(
            world.config, groups_per_batch=rng.randint(1, 3), max_lag=rng.randint(0, 3), last=rng.randint(3, 8), queue=rng.randint(0, 2),
            oversample=rng.randint(0, 1), policy=rng.choice(("wait", "drop")), engines=rng.choice((("a",), ("b", "c", "d"))),
            hops=rng.choice((world.config.hops, world.config.hops[1:], ())),
        )  # fmt: skip
        tables, state = killed_and_resumed(world, config)
        assert state.published == state.saved >= config.last + 1
        check_prompts(tables, state)

    scripted(rng, go_on)


def killed_and_resumed(world: World, config: Config) -> tuple[Books, State]:
    """The tables and the state at the end of the resumed run."""
    tables = copy.deepcopy(world.tables)
    state = resume(config, tables)
    tables.apply(state.journal)
    drive(state, tables)
    return tables, state


def check_prompts(tables: Books, state: State) -> None:
    """Each is finished, once, or live, or waits to be drawn again. Tables refuse what is finished twice."""
    finished = [uid for start, stop in tables.finished for uid in range(start, stop)]
    assert len(finished) == tables.kept.groups + sum(tally.groups for tally in tables.lost.values())
    assert sorted([*finished, *tables.groups, *state.pending]) == list(range(state.next_uid))


def drive(state: State, tables: Books) -> None:
    """Everything succeeds, in the order in which it was asked for."""
    todo: list[ev.AnyEvent] = [ev.RunStarted()]
    while not state.finished:
        actions = decide(state, todo.pop(0))
        tables.apply(state.journal)
        assert state.training is None or max(state.training.staleness) <= state.config.max_lag
        todo += [event for action in actions if (event := answer(action)) is not None]


def answer(action: ev.AnyAction) -> ev.AnyEvent | None:
    match action:
        case ev.Start(engine, start):
            return ev.EngineUp(engine, start, 4)
        case ev.StartWorkers(start):
            return ev.WorkersUp(start)
        case ev.Dispatch(trajectory, _, version_tag):
            return ev.Landed(trajectory, 1, (Span(version_tag, 0, 4),))
        case ev.Run(operator, unit):
            return ev.Ran(operator, unit)
        case ev.Train(batch):
            return ev.Trained(batch)
        case ev.Sync(sync):
            return ev.Synced(sync)
        case ev.Evaluate(evaluation):
            return ev.Evaluated(evaluation)
        case ev.Save(batch):
            return ev.Saved(batch)
        case _:
            return None
