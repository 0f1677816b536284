"""Blocks: rows move together, pad rows are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from rlflow.data.batch import Block, Column
from rlflow.errors import DataError


def sample() -> Block:
    return Block(
        {
            "input_ids": Column.ragged("i64", [[1, 2, 3], [4, 5]]),
            "response_mask": Column.ragged("flag", [[True, True], [True]]),
            "rollout_log_probs": Column.ragged("f32", [[-1.0, -2.0], [-3.0]]),
            "uid": Column.scalars("i64", [7, 8]),
            "traj_uid": Column.scalars("i64", [0, 1]),
            "is_pad": Column.scalars("flag", [False, False]),
            "answer": Column.texts(["a", "bb"]),
        }
    )


def test_rows_of_all_columns_move_together() -> None:
    assert sample().take([1, 0, 1]).to_lists() == {
        "input_ids": [[4, 5], [1, 2, 3], [4, 5]],
        "response_mask": [[True], [True, True], [True]],
        "rollout_log_probs": [[-3.0], [-1.0, -2.0], [-3.0]],
        "uid": [8, 7, 8],
        "traj_uid": [1, 0, 1],
        "is_pad": [False, False, False],
        "answer": ["bb", "a", "bb"],
    }


def test_pad_rows_have_every_field_and_are_their_own_group() -> None:
    assert sample().take([-2, 0, -1]).to_lists() == {
        "input_ids": [[0, 0], [1, 2, 3], [0, 0]],
        "response_mask": [[False], [True, True], [False]],
        "rollout_log_probs": [[0.0], [-1.0, -2.0], [0.0]],
        "uid": [-2, 7, -1],
        "traj_uid": [-2, 0, -1],
        "is_pad": [True, False, True],
        "answer": ["", "a", ""],
    }


def test_pad_rows_of_a_padded_block_do_not_share_a_uid_with_the_old_ones() -> None:
    once = sample().take([0, 1, -1])
    assert once.take([0, 1, 2, -1, -2])["uid"].to_list() == [7, 8, -1, -2, -3]


def test_pad_lengths_may_be_given() -> None:
    lengths = {"input_ids": 2, "response_mask": 1, "rollout_log_probs": 1}
    assert sample().take([-1], pad_lengths=lengths).lengths("response_mask").tolist() == [1]


def test_pad_lengths_that_do_not_follow_are_asked_for() -> None:
    block = Block({"a": Column.ragged("i64", [[1, 2, 3], [1, 2, 3]]), "b": Column.ragged("i64", [[1], [1, 2]])})
    with pytest.raises(DataError, match="the lengths of `b` do not follow those of the longest column: give pad_lengths"):
        block.take([-1])


def test_a_pad_row_of_a_block_without_rows_needs_pad_lengths() -> None:
    empty = sample().take([])
    with pytest.raises(DataError, match="give pad_lengths"):
        empty.take([-1])
    assert empty.take([-1], pad_lengths={"input_ids": 2, "response_mask": 1, "rollout_log_probs": 1}).lengths("input_ids").tolist() == [2]


def test_pad_rows_of_three_axes() -> None:
    block = Block({"position_ids": Column.ragged("i64", [[[1, 2, 3]] * 3])})
    assert block.take([0, -1]).padded("position_ids")[1].tolist() == [[0, 0, 0]] * 3
    assert block.take([0, -1]).lengths("position_ids").tolist() == [3, 2]


def test_a_pad_row_made_twice_is_refused() -> None:
    with pytest.raises(DataError, match=r"pad rows are numbered -1, -2, ... once each, got \[-1, -1\]"):
        sample().take([0, -1, -1])


def test_a_row_that_does_not_exist() -> None:
    with pytest.raises(DataError, match="row 2 does not exist: the block has 2 rows"):
        sample().take([2])


def test_a_run_of_rows_is_taken_as_views() -> None:
    block = Block({"input_ids": Column.ragged("i64", [[1], [2], [3]])})
    assert np.shares_memory(block.take([1, 2])["input_ids"].values, block["input_ids"].values)


def test_columns_must_have_equally_many_rows() -> None:
    with pytest.raises(DataError, match="column `b` has 1 rows, `a` has 2"):
        Block({"a": Column.scalars("i64", [1, 2]), "b": Column.scalars("i64", [1])})


def test_concat_asks_for_the_same_columns() -> None:
    other = sample().select(["uid", "answer"])
    with pytest.raises(DataError, match=r"blocks differ in columns: \['input_ids', "):
        Block.concat([sample(), other])


def test_concat_appends_rows() -> None:
    assert Block.concat([sample(), sample().take([1])])["answer"].to_list() == ["a", "bb", "bb"]


def test_a_column_is_written_once() -> None:
    block = sample()
    assert list(block.select(["uid"]).join(block.select(["answer"])).columns) == ["uid", "answer"]
    with pytest.raises(DataError, match="column `uid` is in both blocks"):
        block.join(block.select(["uid"]))


def test_a_missing_column_names_those_that_are_there() -> None:
    with pytest.raises(DataError, match="no column `values`: there are `uid`, `answer`"):
        sample().select(["uid", "answer"])["values"]


def test_no_rows() -> None:
    empty = sample().take([])
    assert empty.rows == 0
    assert empty.padded("input_ids").shape == (0, 0)
    assert Block.concat([empty, sample()]).rows == 2
