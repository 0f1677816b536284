"""Admission, boarding, dispatch: the rules with the numbers of their examples."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from decide_world import World

from rlflow.errors import UsageError
from rlflow.run.controller import events as ev
from rlflow.run.controller.admission import room
from rlflow.run.controller.boarding import first_violation
from rlflow.run.controller.buffer import ReadyBuffer
from rlflow.run.controller.ids import BatchId, GroupId, Span, TrajectoryId
from rlflow.run.controller.schedule import Config, Hop, Origin
from rlflow.run.controller.state import Group

ONE = Config(n=1, groups_per_batch=1, max_lag=0, last=9, engines=("e",))


def seats(*, published: int, next_batch: int, waiting: int = 0, last: int = 1000, oversample: int = 0) -> int:
    return room(
        waiting=waiting, published=published, next_batch=next_batch, last=last, groups_per_batch=8, max_lag=2, oversample=oversample
    )  # fmt: skip


def test_admission_has_room_for_24_at_the_start() -> None:
    assert seats(published=0, next_batch=0) == 24


def test_V1_admission_has_room_for_24_not_824_after_a_resume_at_100() -> None:
    assert seats(published=100, next_batch=100) == 24


def test_admission_counts_what_waits() -> None:
    assert seats(published=5, next_batch=6, waiting=10) == 6


def test_admission_leaves_no_seat_beyond_the_last_batch() -> None:
    assert seats(published=9, next_batch=9, last=9) == 8
    assert seats(published=9, next_batch=10, last=9, oversample=4) == 0


def test_oversampling_adds_its_groups_while_a_batch_can_be_reached() -> None:
    assert seats(published=0, next_batch=0, oversample=3) == 27


def boards(waiting: dict[int, int], ready: dict[int, int], *, P: int, L: int, b: int) -> bool:  # noqa: N803
    return first_violation(waiting, ready, next_batch=b, groups_per_batch=P, max_lag=L) is None


def test_boarding_waits_for_the_running_group_that_is_due() -> None:
    assert not boards({3: 2, 2: 1}, {3: 2}, P=2, L=1, b=3)


def test_boarding_takes_it_when_it_has_landed() -> None:
    assert boards({3: 2, 2: 1}, {3: 2, 2: 1}, P=2, L=1, b=3)


def test_one_seat_for_two_due_groups_is_no_batch() -> None:
    assert not boards({0: 2, 2: 1, 3: 1}, {0: 2, 2: 1, 3: 1}, P=1, L=3, b=3)


def test_the_batch_that_would_lead_there_is_refused_one_step_earlier() -> None:
    """Two running groups of tag 0 are due in batch 3, and nothing is due in batch 2: boarding the younger one would leave them one seat."""
    assert not boards({0: 2, 1: 1}, {1: 1}, P=1, L=3, b=2)
    assert boards({0: 2, 1: 1}, {1: 1}, P=1, L=3, b=1)


def test_the_smallest_k_that_fails_is_told() -> None:
    assert first_violation({0: 5, 1: 1}, {1: 1}, next_batch=0, groups_per_batch=1, max_lag=3) == 3
    assert first_violation({0: 5, 1: 1}, {1: 1}, next_batch=2, groups_per_batch=1, max_lag=3) == 1


def test_the_earliest_deadlines_board_and_ties_go_by_uid() -> None:
    buffer = ReadyBuffer()
    for uid, tag in ((4, 1), (9, 0), (3, 1), (7, 0), (5, 2)):
        group = Group(uid, tag, [])
        buffer.register(group)
        buffer.make_ready(group)
    assert buffer.earliest_ready(3) == [7, 9, 3]


def land(world: World, *uids: int) -> list[ev.AnyAction]:
    """Land all running trajectories of these groups, in order; what the last landing made possible."""
    actions: list[ev.AnyAction] = []
    for uid in uids:
        for trajectory in [trajectory for trajectory in world.running() if trajectory.uid == uid]:
            actions = world.land(trajectory)
    return actions


def train_and_sync(world: World) -> list[ev.AnyAction]:
    world.train()
    return world.sync("e")


def dispatched(actions: list[ev.AnyAction]) -> list[str]:
    return [str(action.trajectory) for action in actions if isinstance(action, ev.Dispatch)]


def boarded(world: World) -> tuple[int, ...]:
    return world.training.groups if world.training else ()


def test_two_due_groups_still_running_hold_the_batch_until_both_have_landed() -> None:
    """P = 2, L = 1: uids 2 and 3 have tag 0 and are due in batch 1; 4 and 5 have tag 1 and are ready first."""
    world = World(replace(ONE, groups_per_batch=2, max_lag=1))
    world.begin(capacity=4)
    land(world, 0, 1)
    train_and_sync(world)
    assert [world.tags[uid] for uid in (2, 3, 4, 5)] == [0, 0, 1, 1]
    land(world, 4, 5, 2)
    assert boarded(world) == ()
    land(world, 3)
    assert boarded(world) == (2, 3)


def test_max_lag_0_is_synchronous_by_itself() -> None:
    world = World(replace(ONE, n=2, groups_per_batch=2))
    assert dispatched(world.begin()) == ["0.0.0", "0.1.0", "1.0.0", "1.1.0"]
    assert dispatched(land(world, 0)) == []
    assert dispatched(land(world, 1)) == []
    assert boarded(world) == (0, 1)
    assert dispatched(world.train()) == []
    assert dispatched(world.sync("e")) == ["2.0.0", "2.1.0", "3.0.0", "3.1.0"]


def test_max_lag_1_fills_the_engine_while_the_batch_trains() -> None:
    world = World(replace(ONE, groups_per_batch=2, max_lag=1))
    assert dispatched(world.begin()) == ["0.0.0", "1.0.0", "2.0.0", "3.0.0"]
    land(world, 0, 1)
    assert len(world.running()) == 2
    assert dispatched(world.train()) == []
    assert dispatched(world.sync("e")) == ["4.0.0", "5.0.0"]


def test_no_dispatch_at_the_watermark() -> None:
    world = World(replace(ONE, n=2, groups_per_batch=4, watermark=3))
    assert dispatched(world.begin()) == ["0.0.0", "0.1.0", "1.0.0"]
    assert dispatched(land(world, 0)[-4:]) == ["2.0.0"]


def test_the_engine_with_most_room_is_next() -> None:
    world = World(replace(ONE, groups_per_batch=4, engines=("a", "b")))
    world.feed(ev.RunStarted())
    world.come_up()
    world.engine_up("a", 1)
    world.engine_up("b", 3)
    world.sync("a")
    world.sync("b")
    assert [len(world.hosts[name].running) for name in ("a", "b")] == [1, 3]


def test_room_that_appears_later_is_used() -> None:
    world = World(replace(ONE, groups_per_batch=4))
    assert len(dispatched(world.begin(capacity=1))) == 1
    world.hosts["e"].capacity = 3
    assert dispatched(world.feed(ev.Free("e", 3))) == ["1.0.0", "2.0.0"]


def test_a_failed_trajectory_goes_before_every_new_group() -> None:
    world = World(replace(ONE, groups_per_batch=3))
    world.begin(capacity=2)
    assert dispatched(world.fail(TrajectoryId(0, 0, 0))) == ["0.0.1"]


def test_G14_a_group_is_never_shipped_short() -> None:
    """n = 2: one trajectory lands, the other fails for good: the group goes whole and another prompt takes its seat."""
    world = World(replace(ONE, n=2, max_attempts=2))
    world.begin()
    world.land(TrajectoryId(0, 0, 0))
    assert dispatched(world.fail(TrajectoryId(0, 1, 0))) == ["0.1.1"]
    actions = world.fail(TrajectoryId(0, 1, 1))
    drop = next(action for action in actions if isinstance(action, ev.Drop))
    assert (drop.group, drop.reason) == (GroupId(0, 0), "attempts")
    assert drop.detail == "trajectory 0.1.1 failed 2 times, the last time: the environment crashed"
    assert dispatched(actions) == ["1.0.0", "1.1.0"]


def test_a_dropped_group_aborts_its_running_trajectories() -> None:
    world = World(replace(ONE, n=3, max_attempts=1))
    world.begin()
    actions = world.fail(TrajectoryId(0, 1, 0))
    assert [action.trajectory for action in actions if isinstance(action, ev.Abort)] == [TrajectoryId(0, 0, 0), TrajectoryId(0, 2, 0)]


def test_Q5_one_prompt_that_always_fails_does_not_stop_the_run() -> None:
    world = World(replace(ONE, groups_per_batch=2, max_attempts=2, last=3))
    world.begin()
    while world.finish is None:
        wait = next((t for t in world.running() if t.uid == 3), None)
        if wait is not None:
            world.fail(wait)
        else:
            answer_first(world)
    assert world.finish.outcome == "done"
    assert sorted(world.trained) == [0, 1, 2, 4, 5, 6, 7, 8]
    assert dict(world.dropped) == {3: 1}


def answer_first(world: World) -> None:
    world.answer(world.outstanding()[0], random.Random(0))


def test_a_trajectory_is_scored_when_it_lands_and_waits_for_no_sibling() -> None:
    world = World(replace(ONE, n=2, hops=(Hop("reward"), Hop("filter", per="group"))))
    world.begin()
    actions = world.land(TrajectoryId(0, 1, 0))
    assert [action for action in actions if isinstance(action, ev.Run)] == [ev.Run("reward", TrajectoryId(0, 1, 0))]


def test_group_operators_run_when_every_trajectory_has_passed_its_own() -> None:
    world = World(replace(ONE, n=2, hops=(Hop("reward"), Hop("filter", per="group"))))
    world.begin()
    land(world, 0)
    assert world.ran("reward", TrajectoryId(0, 1, 0)) == [ev.Disarm("operator reward of trajectory 0.1.0")]
    assert ev.Run("filter", GroupId(0, 0)) in world.ran("reward", TrajectoryId(0, 0, 0))
    world.ran("filter", GroupId(0, 0))
    assert boarded(world) == (0,)


def test_G17_what_a_filter_drops_is_refilled() -> None:
    world = World(replace(ONE, groups_per_batch=2, hops=(Hop("filter", per="group"),)))
    world.begin()
    land(world, 0, 1)
    actions = world.ran("filter", GroupId(0, 0), "drop")
    assert ev.Drop(GroupId(0, 0), "filter", "no variance") in actions
    assert dispatched(actions) == ["2.0.0"]
    assert world.state.totals.dropped == {"filter": 1}


def test_Q11_a_run_in_which_every_group_is_filtered_ends_with_the_reason() -> None:
    world = World(replace(ONE, hops=(Hop("filter", per="group"),), max_drops=5))
    world.begin()
    while world.finish is None:
        land(world, *(t.uid for t in world.running()))
        world.ran(*next(iter(world.runs)), "drop")
    assert world.finish == ev.Finish("failed", "6 groups were dropped without a batch in between, the last one by filter: no variance")


def test_Q1_ready_groups_that_do_not_board_are_kept() -> None:
    world = World(replace(ONE, groups_per_batch=2, max_lag=2))
    world.begin()
    land(world, 0, 1, 2, 3, 4)
    assert boarded(world) == (0, 1)
    assert world.state.ready == 3


def test_rows_of_a_batch_are_ordered_by_uid_and_traj_uid() -> None:
    world = World(replace(ONE, n=2, groups_per_batch=2))
    world.begin()
    for trajectory in (TrajectoryId(1, 1, 0), TrajectoryId(0, 1, 0), TrajectoryId(1, 0, 0), TrajectoryId(0, 0, 0)):
        world.land(trajectory)
    assert world.training is not None
    assert [str(trajectory) for trajectory in world.training.trajectories] == ["0.0.0", "0.1.0", "1.0.0", "1.1.0"]


def test_a_queued_batch_adds_to_the_gap_of_what_it_holds() -> None:
    """P = 1, L = 2, one batch ahead: batch 0 trains, batch 1 is queued, and what version 0 sampled is 1 old in it."""
    world = World(replace(ONE, max_lag=2, queue=1))
    world.begin()
    land(world, 0, 1, 2)
    assert world.state.queue_depth == 1
    assert [batch.staleness for batch in world.state.batches] == [{1: 4}]
    world.train()
    assert world.state.training is not None
    assert world.state.training.id == BatchId(0, 1)
    assert [batch.staleness for batch in world.state.batches] == [{2: 4}]


def test_the_gap_is_counted_by_the_version_that_really_sampled_each_token() -> None:
    """uid 1 starts at version 0 and goes on at version 1: 4 tokens of each in batch 1."""
    world = World(replace(ONE, max_lag=1))
    world.begin()
    land(world, 0)
    train_and_sync(world)
    land(world, 1)
    assert world.state.training is not None
    assert world.state.training.staleness == {0: 4, 1: 4}


@pytest.mark.parametrize(
    ("version", "rows", "why"), [(0, 1, "tokens 0:4 were sampled by version 0"), (2, 1, "by version 2"), (1, 0, "without a row")]
)
def test_what_breaks_the_contract_of_a_landing_is_a_failed_attempt(version: int, rows: int, why: str) -> None:
    world = World(replace(ONE, max_attempts=1))
    world.begin()
    land(world, 0)
    train_and_sync(world)
    actions = world.feed(ev.Landed(TrajectoryId(1, 0, 0), rows, (Span(version, 0, 4),)))
    assert ev.Abort(TrajectoryId(1, 0, 0)) in actions
    assert why in next(action.detail for action in actions if isinstance(action, ev.Drop))


def test_the_source_ends_in_a_short_batch() -> None:
    world = World(replace(ONE, groups_per_batch=2, prompts=3))
    world.begin()
    land(world, 0, 1)
    train_and_sync(world)
    land(world, 2)
    assert boarded(world) == (2,)
    world.train()
    world.save(BatchId(0, 1))
    assert world.finish == ev.Finish("done", "the source has ended, at version 2")


def test_a_short_batch_waits_for_all_that_are_left() -> None:
    world = World(replace(ONE, groups_per_batch=3, prompts=2))
    world.begin()
    land(world, 1)
    assert boarded(world) == ()
    land(world, 0)
    assert boarded(world) == (0, 1)


def test_the_remainder_is_dropped_by_option() -> None:
    world = World(replace(ONE, groups_per_batch=2, max_lag=1, prompts=3, remainder="drop"))
    world.begin()
    land(world, 0, 1)
    assert world.state.totals.dropped == {"remainder": 1}
    world.train()
    world.save(BatchId(0, 0))
    assert world.finish == ev.Finish("done", "the source has ended, at version 1")


def test_a_remainder_that_is_ready_when_the_batch_before_it_is_formed_is_dropped_all_the_same() -> None:
    """P = 2, L = 1, 5 prompts: 3 is due in batch 1 and lands last; 4, which is ready by then, is no batch of its own."""
    world = World(replace(ONE, groups_per_batch=2, max_lag=1, queue=1, prompts=5, remainder="drop"))
    world.begin()
    land(world, 0, 1)
    train_and_sync(world)
    land(world, 4, 2)
    assert boarded(world) == ()
    land(world, 3)
    assert boarded(world) == (2, 3)
    assert world.state.queue_depth == 0
    assert dict(world.dropped) == {4: 1}


def test_a_source_that_ends_by_an_event_draws_no_more() -> None:
    world = World(ONE)
    world.begin()
    world.end_source()
    land(world, 0)
    assert dispatched(train_and_save(world)) == []
    assert world.finish == ev.Finish("done", "the source has ended, at version 1")


def train_and_save(world: World) -> list[ev.AnyAction]:
    actions = world.train()
    return actions + world.save(next(iter(world.saves)))


def test_oversampled_groups_are_dropped_when_the_batch_can_be_formed() -> None:
    """P = 2, L = 0, s = 1: three groups are sent, the first two that are ready board, the third is dropped."""
    world = World(replace(ONE, groups_per_batch=2, oversample=1))
    world.begin()
    land(world, 0)
    actions = land(world, 2)
    assert ev.Abort(TrajectoryId(1, 0, 0)) in actions
    assert boarded(world) == (0, 2)
    assert world.state.totals.dropped == {"oversampled": 1}


@pytest.mark.parametrize("start", [2**31 - 2, 2**53 - 2])
def test_counters_do_not_wrap(start: int) -> None:
    origin = Origin(timeline=start, version=start, uid=start, attempt=start)
    world = World(replace(ONE, groups_per_batch=2, last=start + 3, max_lag=1, eval_every=1), origin)
    world.begin()
    world.finish_fairly(random.Random(0))
    assert world.finish == ev.Finish("done", f"the last batch is trained, at version {start + 4}")
    assert sorted(world.trained) == list(range(start, start + 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n=0 makes no run: it must be at least 1"),
        ({"max_lag": -1}, "max_lag=-1 makes no run"),
        ({"policy": "hurry"}, "policy='hurry' is none of wait, drop, mask, correct"),
        ({"watermark": 2}, r"watermark=2 trajectories is outside \[1, 1\]"),
        ({"engines": ()}, "at least one engine"),
        ({"timeouts": {"lunch": 1.0}}, r"timeouts for \['lunch'\]: no such wait; there are worker start, engine start"),
        ({"hops": (Hop("f", per="group"), Hop("r"))}, "those per trajectory run before those per group"),
        ({"hops": (Hop("r"), Hop("r"))}, "an operator is named twice"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(ONE, **change)  # type: ignore[arg-type]
