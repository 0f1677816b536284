"""Row plans: what must hold for every batch, and the small cases that are written down."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlflow.data.rowplan import RowPlan, over_budget, pack_index, pad_index, plan_rows, rebalance_index, shard_index
from rlflow.errors import DataError

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def uids(rows: int, group: int) -> np.ndarray:
    return np.arange(rows) // group * 7 + 3


def padded(lengths: list[int], group: int, multiple: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lengths, is_pad, uid) of a padded batch."""
    index = pad_index(len(lengths), multiple=multiple)
    pads = index[len(lengths) :]
    return np.append(lengths, np.full(len(pads), 2)), index < 0, np.append(uids(len(lengths), group), pads)


# --- pad ------------------------------------------------------------------------------------------------------------------------------
@given(st.integers(0, 200), st.integers(1, 40))
def test_pad_keeps_the_rows_and_adds_as_few_as_possible(rows: int, multiple: int) -> None:
    index = pad_index(rows, multiple=multiple).tolist()
    assert len(index) % multiple == 0
    assert len(index) - rows < multiple
    assert index[:rows] == list(range(rows))
    assert index[rows:] == [-1 - i for i in range(len(index) - rows)]


def test_D10_pads_may_outnumber_the_rows() -> None:
    assert pad_index(3, multiple=8).tolist() == [0, 1, 2, -1, -2, -3, -4, -5]


def test_pad_to_a_multiple_of_nothing() -> None:
    with pytest.raises(DataError, match="cannot pad to a multiple of 0"):
        pad_index(3, multiple=0)


# --- rebalance ------------------------------------------------------------------------------------------------------------------------
@given(LENGTHS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9))
def test_rebalance_is_a_permutation(lengths: list[int], group: int, mini_batches: int, dp: int, seed: int) -> None:
    rows = padded(lengths, group, dp * mini_batches)
    index = rebalance_index(*rows, pieces=4 * dp, mini_batches=mini_batches, seed=seed)
    assert sorted(index.tolist()) == list(range(len(rows[0])))


def members(lengths: list[int], group: int, mini_batches: int, dp: int, seed: int) -> list[set[int]]:
    """The real rows of every mini-batch."""
    rows = padded(lengths, group, dp * mini_batches)
    index = rebalance_index(*rows, pieces=4 * dp, mini_batches=mini_batches, seed=seed)
    return [{int(i) for i in part if i < len(lengths)} for part in np.split(index, mini_batches)]


@given(LENGTHS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 9))
def test_who_is_in_a_mini_batch_does_not_depend_on_dp_or_pads(lengths: list[int], group: int, mini_batches: int, seed: int) -> None:
    one = members(lengths, group, mini_batches, 1, seed)
    assert members(lengths, group, mini_batches, 2, seed) == one
    assert members(lengths, group, mini_batches, 4, seed) == one
    assert members(lengths[::-1], group, mini_batches, 1, seed) == one  # nor on lengths


@given(LENGTHS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 9))
def test_mini_batches_hold_equally_many_rows_and_split_few_groups(lengths: list[int], group: int, mini_batches: int, seed: int) -> None:
    parts = members(lengths, group, mini_batches, 2, seed)
    counts = [len(part) for part in parts]
    assert max(counts) - min(counts) <= 1
    pieces_of_group = Counter(uid for part in parts for uid in {i // group for i in part})
    assert sum(n - 1 for n in pieces_of_group.values()) <= mini_batches - 1


def test_mini_batches_are_drawn_by_seed() -> None:
    drawn = {tuple(map(tuple, map(sorted, members([5] * 8, 2, 2, 1, seed)))) for seed in range(20)}
    assert len(drawn) == 6  # each way to choose 2 of 4 groups, and the halves of no group are apart


def test_mini_batches_are_the_same_on_every_machine() -> None:
    """A resumed run must cut as the run before did: these values may never change."""
    assert [sorted(part) for part in members([5] * 12, 3, 2, 1, seed=1)] == [[6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]]


def test_D15_pieces_hold_equally_many_rows() -> None:
    """10 rows in 4 pieces: 2, 3, 2, 3, though one row weighs as much as all others."""
    lengths = np.array([90, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    index = rebalance_index(lengths, np.zeros(10, np.bool_), np.arange(10), pieces=4)
    assert [len(part) for part in np.split(index, [2, 5, 7])] == [2, 3, 2, 3]
    assert [int(lengths[part].sum()) for part in np.split(index, [2, 5, 7])] == [100, 30, 20, 30]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=40).filter(lambda lengths: len(lengths) % 2 == 0))
def test_two_slices_differ_by_no_more_than_the_longest_row(lengths: list[int]) -> None:
    rows = len(lengths)
    index = rebalance_index(np.array(lengths), np.zeros(rows, np.bool_), np.arange(rows), pieces=8)
    halves = np.array(lengths)[index].reshape(2, -1).sum(1)
    assert abs(int(halves[0] - halves[1])) <= max(lengths)


@pytest.mark.parametrize("seed", range(3))
def test_slices_of_ranks_weigh_the_same(seed: int) -> None:
    """512 rows with a long tail over 8 ranks: the heaviest slice is within 0.5 % of the mean, where plain slices are not."""
    lengths = np.minimum(np.random.default_rng(seed).lognormal(6, 1, 512).astype(np.int64) + 2, 16_384)
    plain = lengths.reshape(8, -1).sum(1)
    index = rebalance_index(lengths, np.zeros(512, np.bool_), np.arange(512) // 8, pieces=32)
    balanced = lengths[index].reshape(8, -1).sum(1)
    print(f"heaviest / mean rank: {plain.max() / plain.mean():.3f} as they come, {balanced.max() / balanced.mean():.3f} rebalanced")
    assert balanced.max() / balanced.mean() < 1.005
    assert plain.max() / plain.mean() > 1.1


def test_rows_that_do_not_divide_by_mini_batches() -> None:
    with pytest.raises(DataError, match="cannot cut 10 rows in 4 mini-batches of 8 pieces"):
        rebalance_index(np.ones(10), np.zeros(10, np.bool_), np.arange(10), pieces=8, mini_batches=4)


# --- shard ----------------------------------------------------------------------------------------------------------------------------
def test_shard_is_a_slice_of_every_mini_batch() -> None:
    cells = shard_index(12, dp=2, mini_batches=3)
    assert [[cell.tolist() for cell in rank] for rank in cells] == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 6))
def test_shards_are_all_rows_once(dp: int, mini_batches: int, each: int) -> None:
    cells = shard_index(dp * mini_batches * each, dp=dp, mini_batches=mini_batches)
    assert [len(rank) for rank in cells] == [mini_batches] * dp
    joined = [int(i) for j in range(mini_batches) for rank in cells for i in rank[j]]
    assert joined == list(range(dp * mini_batches * each))


def test_D2_rows_that_do_not_divide_by_ranks_are_refused_with_the_multiple() -> None:
    with pytest.raises(DataError, match="16 rows do not divide by dp 32 x 1 mini-batches: pad to a multiple of 32 first"):
        shard_index(16, dp=32)


# --- micro-batches --------------------------------------------------------------------------------------------------------------------
RANKS = st.integers(1, 4).flatmap(lambda dp: st.lists(st.lists(st.integers(1, 50), min_size=6, max_size=6), min_size=dp, max_size=dp))


@given(st.lists(RANKS, min_size=1, max_size=3), st.integers(1, 120), st.booleans())
def test_D1_every_row_once_under_the_budget_and_equally_many_on_all_ranks(minis: list[list[list[int]]], budget: int, padded: bool) -> None:
    dp = min(map(len, minis))
    lengths = [[np.array(mini[r]) for mini in minis] for r in range(dp)]
    packed = pack_index(lengths, max_tokens=budget, padded=padded)
    for j in range(len(minis)):
        assert len({len(rank[j]) for rank in packed}) == 1
        for r in range(dp):
            micros = packed[r][j]
            assert sorted(int(i) for micro in micros for i in micro) == list(range(6))
            for micro in micros:
                tokens = lengths[r][j][micro]
                assert len(tokens) == 1 or (len(tokens) * tokens.max() if padded else tokens.sum()) <= budget


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 120))
def test_no_cut_under_the_padded_budget_needs_fewer(lengths: list[int], budget: int) -> None:
    def fewest(rest: tuple[int, ...]) -> int:
        """By trying, for the longest row left, every number of companions: the next longest ones are never worse."""
        if not rest:
            return 0
        fits = [n for n in range(1, len(rest) + 1) if n == 1 or n * rest[0] <= budget]
        return min(1 + fewest(rest[n:]) for n in fits)

    packed = pack_index([[np.array(lengths)]], max_tokens=budget)[0][0]
    assert len(packed) == fewest(tuple(sorted(lengths, reverse=True)))


def test_first_fit_mixes_long_with_short_where_nothing_is_padded() -> None:
    packed = pack_index([[np.array([6, 6, 4, 4])]], max_tokens=10, padded=False)[0][0]
    assert sorted(sorted(micro.tolist()) for micro in packed) == [[0, 2], [1, 3]]


def test_a_rank_with_short_rows_is_cut_further() -> None:
    packed = pack_index([[np.array([9, 9, 9, 9])], [np.array([1, 2, 3, 4])]], max_tokens=18)
    assert [len(rank[0]) for rank in packed] == [2, 2]
    assert [micro.tolist() for micro in packed[1][0]] == [[3, 2], [1, 0]]


def test_costliest_first() -> None:
    packed = pack_index([[np.array([1, 1, 9, 5, 5])]], max_tokens=10)[0][0]
    assert [micro.tolist() for micro in packed] == [[3, 4], [2], [0, 1]]


def test_micro_batches_weigh_alike() -> None:
    """Filled up to the budget they would be 10, 9 and 2 tokens: [5, 3], [9], [2]."""
    packed = pack_index([[np.array([9, 2, 5, 3])]], max_tokens=10)[0][0]
    assert [micro.tolist() for micro in packed] == [[0], [3, 1], [2]]


def test_a_row_longer_than_the_budget_is_alone_and_named() -> None:
    lengths = np.array([3, 30, 3])
    assert sorted(micro.tolist() for micro in pack_index([[lengths]], max_tokens=10)[0][0]) == [[0, 2], [1]]
    assert over_budget(lengths, max_tokens=10).tolist() == [1]


def test_fewer_rows_than_micro_batches() -> None:
    with pytest.raises(DataError, match="rank 1 has 1 rows in mini-batch 0, another needs 2 micro-batches"):
        pack_index([[np.array([9, 9])], [np.array([1])]], max_tokens=9)


def test_no_rows_no_micro_batches() -> None:
    assert pack_index([[np.array([], np.int64)], [np.array([], np.int64)]], max_tokens=9) == [[[]], [[]]]


def test_a_budget_of_nothing() -> None:
    with pytest.raises(DataError, match="a budget of 0 tokens holds no row"):
        pack_index([[np.array([1])]], max_tokens=0)


# --- all of it ------------------------------------------------------------------------------------------------------------------------
def planned(lengths: list[int], group: int, dp: int, mini_batches: int, budget: int, seed: int = 0) -> RowPlan:
    return plan_rows(
        np.array(lengths),
        uids(len(lengths), group),
        multiple=dp * mini_batches,
        pieces=4 * dp,
        dp=dp,
        max_tokens=budget,
        mini_batches=mini_batches,
        seed=seed,
    )


@given(LENGTHS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 120), st.integers(0, 3))
def test_a_plan_holds_every_row_and_pad_once(lengths: list[int], group: int, dp: int, minis: int, budget: int, seed: int) -> None:
    plan = planned(lengths, group, dp, minis, budget, seed)
    ranks = [plan.micros(r) for r in range(dp)]
    rows = [int(i) for rank in ranks for mini in rank for micro in mini for i in micro]
    pads = -len(lengths) % (dp * minis)
    assert sorted(rows) == [*range(-pads, 0), *range(len(lengths))]
    assert (plan.rows, plan.padded) == (len(lengths), len(lengths) + pads)
    for j in range(minis):
        assert len({sum(map(len, rank[j])) for rank in ranks}) == 1  # rows of the mini-batch on each rank
        assert len({len(rank[j]) for rank in ranks}) == 1  # micro-batches
    for r, rank in enumerate(ranks):
        assert plan.rows_of(r).tolist() == [int(i) for mini in rank for micro in mini for i in micro]


@given(LENGTHS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_a_plan_for_more_ranks_trains_the_same_mini_batches(lengths: list[int], group: int, minis: int, seed: int) -> None:
    def parts(dp: int) -> list[list[int]]:
        ranks = [planned(lengths, group, dp, minis, 100, seed).micros(r) for r in range(dp)]
        return [sorted(int(i) for rank in ranks for micro in rank[j] for i in micro if i >= 0) for j in range(minis)]

    assert parts(1) == parts(2) == parts(4)
    assert [set(part) for part in parts(1)] == members(lengths, group, minis, 1, seed)


def test_G10_more_rows_a_prompt_are_not_more_optimizer_steps() -> None:
    uid = np.repeat([1, 2, 3, 4], [4, 1, 3, 2])
    plan = plan_rows(np.full(10, 5), uid, multiple=4, pieces=8, dp=2, max_tokens=20, mini_batches=2)
    assert [len(plan.micros(rank)) for rank in range(2)] == [2, 2]


def test_rows_that_are_pads_already_fill_up_mini_batches_too() -> None:
    is_pad = np.array([False, True, False, True])
    plan = plan_rows(np.full(4, 5), np.array([1, -1, 2, -2]), is_pad=is_pad, multiple=2, pieces=1, dp=1, max_tokens=99, mini_batches=2)
    assert [sum(not is_pad[i] for micro in mini for i in micro) for mini in plan.micros(0)] == [1, 1]


def test_a_plan_names_the_rows_that_exceed_the_budget() -> None:
    assert planned([5, 500, 5, 5], 2, 2, 1, budget=100).over_budget == (1,)


def test_a_plan_is_a_few_bytes_a_row_and_survives_the_wire() -> None:
    lengths = np.random.default_rng(0).integers(2, 4000, 8192).tolist()
    plan = planned(lengths, 8, 8, 4, 16_384)
    sent = msgspec.msgpack.encode(plan)
    assert len(sent) < 5 * 8192
    assert msgspec.msgpack.decode(sent, type=RowPlan) == plan


def test_a_plan_of_no_rows() -> None:
    plan = planned([], 1, 2, 2, 100)
    assert (plan.padded, plan.micros(0), plan.micros(1)) == (0, [[], []], [[], []])


def test_a_rank_that_the_plan_does_not_have() -> None:
    with pytest.raises(DataError, match="rank 2 of a plan for dp 2"):
        planned([5] * 4, 2, 2, 1, 100).micros(2)


def test_the_order_within_a_group_is_kept_when_it_is_cut() -> None:
    """A group cut by the border of two mini-batches: its first rows are in the first."""
    parts = members([5] * 4, 4, 2, 1, seed=3)
    assert parts == [{0, 1}, {2, 3}]
