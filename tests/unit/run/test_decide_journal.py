"""What transitions leave in the journal, and what tables make of it."""

from __future__ import annotations

import random

import msgspec
from decide_world import World

from rlflow.run.controller.books import Books
from rlflow.run.controller.ids import Span, TrajectoryId
from rlflow.run.controller.intervals import IntervalSet
from rlflow.run.controller.journal import BatchRow, Change, Counters, EvaluationRow, Finished, GroupRow, Pending, SavedRow, TrajectoryRow
from rlflow.run.controller.schedule import Config
from rlflow.run.controller.tally import Tally

ONE = Config(n=1, groups_per_batch=1, max_lag=0, last=9, engines=("e",))


def test_a_landing_that_makes_a_batch_is_one_transaction() -> None:
    world = World(ONE)
    world.begin()
    world.land(TrajectoryId(0, 0, 0))
    assert world.state.journal == [
        BatchRow(0, 0, "queued", (0,)),
        BatchRow(0, 0, "training", (0,)),
        TrajectoryRow(0, 0, 0, 0, "landed", "e", 1, (Span(0, 0, 4),), 0),
        GroupRow(0, 0, "consumed", 0, 0, 0),
    ]


def test_a_new_attempt_takes_the_row_of_the_old_one() -> None:
    world = World(ONE)
    world.begin()
    world.fail(TrajectoryId(0, 0, 0))
    assert world.tables.trajectories == {0: {0: TrajectoryRow(0, 0, 1, 0, "running", "e", 0, (), 0)}}


def test_changes_survive_the_wire() -> None:
    world = World(ONE)
    world.begin()
    world.land(TrajectoryId(0, 0, 0))
    changes: list[Change] = [*world.state.journal, Pending((3,)), Finished((4, 5)), SavedRow(0, 7), Counters(0, 0, 0, 0)]
    changes += [EvaluationRow(5, "scored", 0, 6, 0.5)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(changes), type=list[Change]) == changes


def test_what_is_finished_is_kept_as_counts_and_intervals() -> None:
    books = Books()
    books.apply([GroupRow(uid, 0, "trained", 0, 0, 0, 1) for uid in (0, 1, 3)])
    books.apply([GroupRow(2, 0, "dropped", -1, 0, 0, 1, "filter", "no variance"), Finished((1, 3, 0, 2)), Counters(0, 0, 0, 0)])
    assert (books.groups, list(books.finished)) == ({}, [(0, 4)])
    assert (books.kept, books.lost) == (Tally(groups=3), {"filter": Tally(groups=1)})


def test_what_goes_back_to_pending_leaves_no_row() -> None:
    books = Books()
    books.apply([GroupRow(0, 0, "running", -1, 0, 0), TrajectoryRow(0, 0, 0, 0, "running", "e", 0, (), 0), Pending((0,))])
    assert books == Books()


def test_an_interval_set_is_a_set() -> None:
    rng = random.Random(0)
    for _ in range(200):
        numbers = [rng.randint(0, 30) for _ in range(rng.randint(0, 40))]
        intervals = IntervalSet()
        for i, number in enumerate(numbers):
            assert intervals.add(number) is (number not in numbers[:i])
        assert {number for number in range(-1, 32) if number in intervals} == set(numbers)
        assert list(intervals.gaps(3, 25)) == [number for number in range(3, 25) if number not in numbers]
        assert (len(intervals), intervals.stop) == (len(set(numbers)), max(numbers, default=-1) + 1)


def test_neighbours_are_one_interval() -> None:
    intervals = IntervalSet([(0, 3), (5, 6)])
    intervals.add(4)
    assert list(intervals) == [(0, 3), (4, 6)]
    intervals.add(3)
    assert intervals == IntervalSet([(0, 6)])
