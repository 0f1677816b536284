"""Which blocks lie in the pool, as the controller counts them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rlflow.data.pool.protocol import Key
from rlflow.run.blocks import Blocks

A, B, OTHER = Key(0, 64, 128, 1, 1), Key(0, 192, 64, 1, 2), Key(1, 64, 320, 1, 1)


def test_bytes_are_those_put_and_not_freed_and_the_lanes_are_told() -> None:
    told: list[Key] = []

    def release(keys: Iterable[Key]) -> None:
        told.extend(keys)

    blocks = Blocks(release)
    for key in (A, B, OTHER):
        blocks.put(key)
    blocks.free([A])
    assert (blocks.outstanding, blocks.peak, told) == (384, 512, [A])
    blocks.reset_peak()
    assert blocks.peak == 384


def test_who_takes_a_lane_over_keeps_what_is_held_there() -> None:
    blocks = Blocks(lambda keys: None)
    for key in (A, B, OTHER):
        blocks.put(key)
    blocks.free([A])
    assert (blocks.of_lane(0), blocks.of_lane(1), blocks.of_lane(2)) == ((B,), (OTHER,), ())


def test_a_block_freed_twice_is_noticed() -> None:
    blocks = Blocks(lambda keys: None)
    blocks.put(A)
    blocks.free([A])
    with pytest.raises(KeyError):
        blocks.free([A])
