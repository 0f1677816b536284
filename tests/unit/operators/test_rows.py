"""Row operators on real tensors, against plain Python and against the plan that a run makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from operators.fields import Answer, AttentionMask, InputIds, IsPad, PositionIds, ResponseMask, TrajUid, Uid
from operators.rows import micro_pack, pad, rebalance, shard
from rlflow import Record, Worker
from rlflow.data.batch import Block
from rlflow.data.column import Column
from rlflow.data.rowplan import plan_rows
from rlflow.data.torch import to_torch
from rlflow.errors import DataError
from rlflow.language.worker import Site


class Rows(Record):
    input_ids: InputIds
    attention_mask: AttentionMask
    response_mask: ResponseMask
    uid: Uid
    traj_uid: TrajUid
    is_pad: IsPad
    answer: Answer


def block(lengths: list[int], group: int = 2) -> Block:
    """Row i holds the tokens 100 i + 1, 100 i + 2, ..., so that a row is known by its first token."""
    n = len(lengths)
    return Block(
        {
            "input_ids": Column.ragged("i64", [[100 * i + t for t in range(1, length + 1)] for i, length in enumerate(lengths)]),
            "attention_mask": Column.ragged("flag", [[True] * length for length in lengths]),
            "response_mask": Column.ragged("flag", [[True] * (length - 1) for length in lengths]),
            "uid": Column.scalars("i64", [10 + i // group for i in range(n)]),
            "traj_uid": Column.scalars("i64", [i % group for i in range(n)]),
            "is_pad": Column.scalars("flag", [False] * n),
            "answer": Column.texts([str(i) for i in range(n)]),
        }
    )


def record(rows: Block) -> Rows:
    fields: dict[str, Any] = {name: to_torch(column) for name, column in rows.columns.items()}
    return Rows(**fields)


def names(rows: Rows) -> list[int]:
    """Which rows these are; -1: a pad row."""
    return [int(tokens[0]) // 100 if tokens[0] else -1 for tokens in rows.input_ids]


def at_rank(rank: int, dp: int) -> Worker:
    worker = Worker("actor", dp=dp)
    worker.open(Site(name="actor", rank=rank, dp_size=dp, run_dir=Path(), seed=0, rendezvous=""))
    return worker


# --- pad ------------------------------------------------------------------------------------------------------------------------------
def test_G8_pad_rows_have_every_field_and_a_group_of_their_own() -> None:
    out = pad(record(block([3, 2, 2])), multiple=5)
    assert names(out) == [0, 1, 2, -1, -1]
    assert out.input_ids[3:].tolist() == [[0, 0, 0]] * 2
    assert out.response_mask[3:].any().item() is False
    assert out.attention_mask[3:].any().item() is False
    assert out.is_pad.tolist() == [False, False, False, True, True]
    assert out.uid.tolist() == [10, 10, 11, -1, -2]
    assert out.traj_uid.tolist() == [0, 1, 0, -1, -2]
    assert out.answer == ["0", "1", "2", "", ""]


def test_padding_twice_gives_no_two_pads_one_group() -> None:
    assert pad(pad(record(block([2] * 3)), multiple=2), multiple=3).uid.tolist() == [10, 10, 11, -1, -2, -3]


def test_pad_of_no_rows_is_no_rows() -> None:
    assert names(pad(record(block([])), multiple=4)) == []


def test_the_record_given_stays_as_it_was() -> None:
    rows = record(block([3, 2]))
    pad(rows, multiple=4)
    assert names(rows) == [0, 1]


# --- rebalance ------------------------------------------------------------------------------------------------------------------------
def test_rebalance_gives_each_half_the_same_tokens() -> None:
    out = rebalance(record(block([9, 8, 7, 6, 2, 2, 2, 2])), pieces=4)
    tokens = out.attention_mask.sum(-1)
    assert sorted(names(out)) == list(range(8))
    assert (tokens[:4].sum().item(), tokens[4:].sum().item()) == (19, 19)


def test_rows_move_as_a_whole() -> None:
    out = rebalance(record(block([5, 9, 3, 7])), pieces=2)
    for i, row in enumerate(names(out)):
        length = [5, 9, 3, 7][row]
        assert out.input_ids[i].tolist() == [100 * row + t for t in range(1, length + 1)] + [0] * (9 - length)
        assert out.response_mask[i].sum().item() == length - 1
        assert (out.uid[i].item(), out.traj_uid[i].item(), out.answer[i]) == (10 + row // 2, row % 2, str(row))


class NoUid(Record):
    position_ids: PositionIds
    response_mask: ResponseMask
    is_pad: IsPad


def no_uid() -> NoUid:
    return NoUid(
        position_ids=torch.tensor([[0, 1, 2, 3], [0, 1, 0, 0]]),
        response_mask=torch.tensor([[False, True, True], [True, False, False]]),
        is_pad=torch.tensor([False, False]),
    )


def test_mini_batches_need_groups() -> None:
    assert rebalance(no_uid(), pieces=1).position_ids.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]
    with pytest.raises(DataError, match="NoUid has no uid: groups decide who is in which of 2 mini-batches"):
        rebalance(no_uid(), pieces=1, mini_batches=2)


class Bare(Record):
    uid: Uid


def test_a_record_that_shows_no_lengths() -> None:
    with pytest.raises(DataError, match="no token counts: attention_mask, position_ids or response_mask show them, there are uid"):
        rebalance(Bare(uid=torch.tensor([1, 2])), pieces=1)


# --- shard ----------------------------------------------------------------------------------------------------------------------------
def test_a_rank_gets_its_slice_of_every_mini_batch() -> None:
    rows = record(block([2] * 8))
    assert names(shard(rows, on=at_rank(0, 2), mini_batches=2)) == [0, 1, 4, 5]
    assert names(shard(rows, on=at_rank(1, 2), mini_batches=2)) == [2, 3, 6, 7]


def test_without_a_site_it_is_rank_0() -> None:
    assert names(shard(record(block([2] * 4)), on=Worker("actor", dp=2))) == [0, 1]


def test_D2_rows_that_do_not_divide_are_refused_not_dropped() -> None:
    with pytest.raises(DataError, match="6 rows do not divide by dp 4 x 1 mini-batches: pad to a multiple of 4 first"):
        shard(record(block([2] * 6)), on=Worker("actor", dp=4))


# --- micro_pack -----------------------------------------------------------------------------------------------------------------------
def test_micro_batches_keep_the_budget() -> None:
    micro = micro_pack(record(block([9, 2, 5, 3])), max_tokens=10)
    assert [[names(part) for part in mini] for mini in micro.parts] == [[[0], [3, 1], [2]]]  # 9, 2 x 3 and 5 tokens


def test_lengths_come_from_positions_or_responses_where_there_is_no_attention_mask() -> None:
    assert [len(mini) for mini in micro_pack(no_uid(), max_tokens=8).parts] == [1]
    assert [len(mini) for mini in micro_pack(no_uid(), max_tokens=7).parts] == [2]


def test_D1_all_ranks_run_equally_many() -> None:
    """Rank 0 has rows of 2 tokens, which one micro-batch holds; rank 1 has rows of 9 and needs two."""
    rows = record(block([2, 2, 9, 9]))
    packed = [micro_pack(shard(rows, on=at_rank(rank, 2)), max_tokens=10) for rank in range(2)]
    assert [len(micro.parts[0]) for micro in packed] == [2, 2]


def test_mini_batches_survive_shard() -> None:
    micro = micro_pack(shard(record(block([2] * 8)), on=at_rank(1, 2), mini_batches=2), max_tokens=100)
    assert [[names(part) for part in mini] for mini in micro.parts] == [[[2, 3]], [[6, 7]]]


# --- one truth ------------------------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 30), min_size=1, max_size=24), st.integers(1, 3), st.integers(1, 3), st.integers(30, 90))
def test_tensors_and_the_plan_give_the_same_micro_batches(lengths: list[int], dp: int, minis: int, budget: int) -> None:
    rows = block(lengths)
    ready = rebalance(pad(record(rows), multiple=dp * minis), pieces=4 * dp, mini_batches=minis)
    plan = plan_rows(
        np.array(lengths),
        np.array(rows["uid"].to_list()),
        multiple=dp * minis,
        pieces=4 * dp,
        dp=dp,
        max_tokens=budget,
        mini_batches=minis,
    )
    for rank in range(dp):
        micro = micro_pack(shard(ready, on=at_rank(rank, dp), mini_batches=minis), max_tokens=budget)
        planned = plan.micros(rank)
        assert [len(mini) for mini in micro.parts] == [len(mini) for mini in planned]
        for mine, its in zip((part for mini in micro.parts for part in mini), (index for mini in planned for index in mini), strict=True):
            fetched = rows.take(its, pad_lengths={"input_ids": 2, "attention_mask": 2, "response_mask": 1})
            width = int(mine.input_ids.shape[1])
            assert mine.input_ids.tolist() == fetched.padded("input_ids", max(width, 2))[:, :width].tolist()
            assert mine.uid.tolist() == fetched["uid"].to_list()
            assert mine.answer == fetched["answer"].to_list()
