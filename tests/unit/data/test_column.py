"""Columns against plain Python lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlflow.data.column import Column
from rlflow.errors import DataError

INTS = st.lists(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=5), max_size=8)


def padded_by_hand(rows: list[list[Any]], width: int) -> list[list[Any]]:
    return [row + [0] * (width - len(row)) for row in rows]


@given(INTS, st.sampled_from(["i64", "i32", "i16"]))
def test_integers_come_back_as_they_went_in(rows: list[list[int]], dtype: str) -> None:
    assert Column.ragged(dtype, rows).to_list() == rows


@given(st.lists(st.lists(st.floats(width=16, allow_nan=False), max_size=5), max_size=8), st.sampled_from(["f32", "f16"]))
def test_floats_come_back_as_they_went_in(rows: list[list[float]], dtype: str) -> None:
    assert Column.ragged(dtype, rows).to_list() == rows


@given(st.lists(st.text(st.characters(codec=None), max_size=5), max_size=8))
def test_texts_come_back_with_lone_surrogates_too(rows: list[str]) -> None:
    assert Column.texts(rows).to_list() == rows


@given(INTS, st.integers(0, 3))
def test_padded_fills_with_zero_on_the_right(rows: list[list[int]], more: int) -> None:
    width = max(map(len, rows), default=0) + more
    assert Column.ragged("i64", rows).padded(width).tolist() == padded_by_hand(rows, width)


@given(INTS, st.data())
def test_take_picks_rows_in_any_order_and_more_than_once(rows: list[list[int]], data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    taken = Column.ragged("i64", rows).take(np.array(index, np.int64))
    assert taken.to_list() == [rows[i] for i in index]


@given(st.lists(INTS, min_size=1, max_size=4))
def test_concat_is_the_rows_one_after_the_other(parts: list[list[list[int]]]) -> None:
    joined = Column.concat([Column.ragged("i32", part) for part in parts])
    assert joined.to_list() == [row for part in parts for row in part]


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [([], []), ([[]], [0]), ([[], []], [0, 0]), ([[1, 2], [3, 4]], [2, 2]), ([[1]], [1])],
    ids=["no rows", "one empty row", "only empty rows", "all of one length", "one row"],
)
def test_degenerate_columns_stay_ragged(rows: list[list[int]], lengths: list[int]) -> None:
    column = Column.ragged("i64", rows)
    assert column.offsets is not None
    assert column.lengths().tolist() == lengths
    assert column.take(np.arange(len(rows))).to_list() == rows
    assert column.padded().shape == (len(rows), max(lengths, default=0))


def test_an_empty_row_does_not_make_integers_floats() -> None:
    assert Column.ragged("i64", [[], [2**53 + 1]]).to_list() == [[], [2**53 + 1]]


def test_position_ids_of_three_axes() -> None:
    rows = [[[0, 1], [0, 2], [0, 3]], [[5], [6], [7]]]  # [3, S] a row
    column = Column.ragged("i64", rows)
    assert column.values.tolist() == [[0, 0, 0], [1, 2, 3], [5, 6, 7]]  # token-major
    assert column.padded().tolist() == [[[0, 1], [0, 2], [0, 3]], [[5, 0], [6, 0], [7, 0]]]
    assert column.take(np.array([1, 0])).to_list() == rows[::-1]


def test_ragged_axis_before_fixed_ones() -> None:
    rows = [[[1, 2], [3, 4], [5, 6]], [[7, 8]]]  # [S, K] a row: the experts of each token
    column = Column.ragged("i16", rows, axis=1)
    assert column.padded().tolist() == [[[1, 2], [3, 4], [5, 6]], [[7, 8], [0, 0], [0, 0]]]
    assert column.to_list() == rows


def test_no_token_at_all_needs_the_inner_sizes_to_be_said() -> None:
    assert Column.ragged("i64", [[], []], axis=2, inner=(3,)).padded(4).shape == (2, 3, 4)


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    exact, tie_down, tie_up = 1.0, 1.00390625, 1.01171875  # 1 + 2^-8 and 1 + 3 * 2^-8 lie between two bfloat16
    column = Column.scalars("bf16", [exact, tie_down, tie_up, float("nan")])
    assert column.values.dtype == np.uint16
    values = column.to_list()
    assert values[:3] == [1.0, 1.0, 1.015625]
    assert np.isnan(values[3])


def test_bf16_takes_uint16_as_bits() -> None:
    assert Column.scalars("bf16", np.array([0x3F80], np.uint16)).to_list() == [1.0]


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("i64", [1.5], "cannot hold float64 values as i64"),
        ("i16", [40_000], "40000 .. 40000 does not fit i16"),
        ("flag", [0, 1], "cannot hold int64 values as flag"),
        ("f64", [1.0], "unknown dtype 'f64': a column is one of f32, f16, bf16, i64"),
    ],
)
def test_a_value_that_would_change_is_refused(dtype: str, values: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Column.scalars(dtype, values)


def test_padded_narrower_than_a_row_names_the_row() -> None:
    with pytest.raises(DataError, match="row 1 has 3 tokens, the padded width is 2"):
        Column.ragged("i64", [[1], [1, 2, 3]]).padded(2)


def test_rows_of_different_inner_sizes_are_refused() -> None:
    with pytest.raises(DataError, match="rows differ in more than their length"):
        Column.ragged("i64", [[[1], [2]], [[1], [2], [3]]])


def test_columns_of_different_kinds_do_not_join() -> None:
    with pytest.raises(DataError, match="cannot join columns of different kinds"):
        Column.concat([Column.ragged("i64", [[1]]), Column.ragged("i32", [[1]])])


def test_offsets_must_cover_the_values() -> None:
    with pytest.raises(DataError, match="offsets run from 0 to 2, values hold 3"):
        Column("i64", np.arange(3), np.array([0, 2]))


def test_equality_is_by_bits_and_knows_ragged_from_fixed() -> None:
    nan = Column.ragged("f32", [[float("nan")]])
    assert nan == Column.ragged("f32", [[float("nan")]])
    assert Column.ragged("i64", [[1, 2]]) != Column.ragged("i64", [[1], [2]])
    assert Column.scalars("i64", [1]) != Column.ragged("i64", [[1]])


def test_neighbouring_rows_are_a_view() -> None:
    column = Column.ragged("i64", [[1], [2, 3], [4]])
    part = column.between(1, 3)
    assert part.to_list() == [[2, 3], [4]]
    assert np.shares_memory(part.values, column.values)
