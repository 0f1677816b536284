"""The ready buffer: every key that goes in comes out once."""

from __future__ import annotations

from rlflow.data.pool.protocol import Key
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.ready import Landed, Ready

KEYS = [Key(0, 64 * i, 64, 1, i) for i in range(1, 6)]


def filled() -> Ready:
    """Group 7 with trajectories 1 and 0 landed in this order and a block of node 5, group 8 with one trajectory."""
    ready = Ready()
    ready.land(TrajectoryId(7, 1, 0), Landed(7, KEYS[1], (2,), {}))
    ready.land(TrajectoryId(7, 0, 2), Landed(7, KEYS[0], (3,), {}))
    ready.put(7, 5, KEYS[2])
    ready.land(TrajectoryId(8, 0, 0), Landed(8, KEYS[3], (2,), {}))
    return ready


def test_a_group_is_in_the_order_of_its_trajectories() -> None:
    assert [landed.key for landed in filled().group(7)] == [KEYS[0], KEYS[1]]
    assert filled().made(7) == {5: KEYS[2]}


def test_a_forgotten_group_gives_all_its_keys_once() -> None:
    ready = filled()
    assert sorted(key.serial for key in ready.forget_groups([7])) == [1, 2, 3]
    assert ready.forget_groups([7]) == []
    assert ready.group(7) == []
    assert TrajectoryId(8, 0, 0) in ready


def test_another_attempt_is_another_trajectory() -> None:
    ready = filled()
    assert ready.forget(TrajectoryId(7, 1, 1)) == []
    assert ready.forget(TrajectoryId(7, 1, 0)) == [KEYS[1]]
    assert [landed.key for landed in ready.group(7)] == [KEYS[0]]


def test_its_bytes_are_those_of_all_blocks_in_it() -> None:
    ready = filled()
    assert ready.nbytes == 4 * KEYS[0].nbytes
    ready.forget_groups([7])
    assert ready.nbytes == KEYS[3].nbytes
