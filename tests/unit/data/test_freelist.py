"""The free list against a list of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlflow.data.pool.freelist import FreeList


def test_neighbours_join_on_return() -> None:
    free = FreeList(0, 100)
    a, b, c = free.take(10), free.take(20), free.take(70)
    assert (a, b, c) == (0, 10, 30)
    assert free.take(1) is None
    free.give(0, 10)
    free.give(30, 70)
    assert (free.starts, free.ends) == ([0, 30], [10, 100])
    free.give(10, 20)
    assert (free.starts, free.ends) == ([0], [100])


def test_cut_takes_the_very_bytes() -> None:
    free = FreeList(0, 100)
    free.cut(20, 30)
    free.cut(0, 10)
    assert (free.starts, free.ends) == ([10, 50], [20, 100])
    free.cut(10, 10)
    assert (free.starts, free.ends) == ([50], [100])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_never_two_owners_of_a_byte_and_lowest_place_first(steps: list[tuple[bool, int]]) -> None:
    free, owned = FreeList(3, 40), [True] * 3 + [False] * 37
    taken: list[tuple[int, int]] = []
    for give, n in steps:
        if give and taken:
            start, size = taken.pop(n % len(taken))
            free.give(start, size)
            owned[start : start + size] = [False] * size
            continue
        lowest = next((i for i in range(40 - n + 1) if not any(owned[i : i + n])), None)
        assert free.take(n) == lowest
        if lowest is not None:
            owned[lowest : lowest + n] = [True] * n
            taken.append((lowest, n))
        assert free.nbytes == owned.count(False)
