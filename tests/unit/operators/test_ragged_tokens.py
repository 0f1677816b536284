"""Token fields in three layouts, read as the trained tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from operators import ragged
from operators.ragged import Tokens, per_row, segment_sums
from rlflow.data.column import Column
from rlflow.errors import DataError

MASK = torch.tensor([[True, True, False], [False, False, False], [False, True, True]])
FIELD = torch.tensor([[0.0, 2.0, 9.0], [9.0, 9.0, 9.0], [9.0, 0.0, 4.0]])
IN_COLUMNS = Column.ragged("flag", [[True, True, False], [False], [False, True, True]])


def test_trained_tokens_are_read_row_after_row() -> None:
    tokens = Tokens.of(MASK)
    assert tokens.read("x", FIELD).tolist() == [0.0, 2.0, 0.0, 4.0]
    assert tokens.counts.tolist() == [2, 0, 2]
    assert tokens.sums(tokens.read("x", FIELD)).tolist() == [2.0, 0.0, 4.0]
    assert tokens.each(np.array([5, 6, 7])).tolist() == [5, 5, 7, 7]


def test_what_is_written_is_zero_outside_the_mask() -> None:
    got = Tokens.of(MASK).write(np.array([1.0, 2.0, 3.0, 4.0]))
    assert got.tolist() == [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 3.0, 4.0]]
    assert got.dtype == torch.float32


@pytest.mark.parametrize("mask", [MASK, torch.ones(3, 3, dtype=torch.bool), IN_COLUMNS, Column.ragged("flag", [[True], [], [True, True]])])
def test_spread_is_each_then_write(mask: Any) -> None:
    tokens = Tokens.of(mask)
    one, two = tokens.spread(np.array([5.0, 6.0, 7.0])), tokens.write(tokens.each(np.array([5.0, 6.0, 7.0])))
    assert one == two if isinstance(mask, Column) else torch.equal(one, two)


def test_columns_come_back_as_columns_of_the_same_rows() -> None:
    got = Tokens.of(IN_COLUMNS).write(np.array([1.0, 2.0, 3.0, 4.0]))
    assert got.to_list() == [[1.0, 2.0, 0.0], [0.0], [0.0, 3.0, 4.0]]


def test_bfloat16_is_read_as_numbers_in_tensors_and_columns() -> None:
    column = Column.ragged("bf16", [np.array([1.5, -2.0, 0.0], np.float32), np.zeros(1, np.float32), np.array([0, 0.25, 3], np.float32)])
    assert Tokens.of(IN_COLUMNS).read("x", column).tolist() == [1.5, -2.0, 0.25, 3.0]
    assert Tokens.of(MASK).read("x", FIELD.bfloat16()).tolist() == [0.0, 2.0, 0.0, 4.0]


def test_gradients_are_not_followed() -> None:
    assert Tokens.of(MASK).read("x", FIELD.clone().requires_grad_()).tolist() == [0.0, 2.0, 0.0, 4.0]


def test_a_strided_view_is_read_as_it_is() -> None:
    assert Tokens.of(MASK.T).read("x", FIELD.T).tolist() == [0.0, 2.0, 0.0, 4.0]


def test_blocks_are_whole_rows_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "BLOCK", 3)
    tokens = Tokens.of(torch.arange(7) < torch.tensor([[2], [0], [7], [1], [1], [1], [0]]))
    assert list(tokens.blocks()) == [(slice(0, 3), slice(0, 9)), (slice(3, 7), slice(9, 12))]


def test_sums_of_runs_and_of_empty_ones() -> None:
    assert segment_sums(np.array([1.0, 2, 3], np.float32), np.array([0, 2, 0, 1, 0])).tolist() == [0.0, 3.0, 0.0, 3.0, 0.0]
    assert segment_sums(np.zeros(0, np.float32), np.array([0, 0])).tolist() == [0.0, 0.0]


def test_sums_are_in_float64() -> None:
    assert segment_sums(np.array([1e8, 1.0, -1e8], np.float32), np.array([3])).tolist() == [1.0]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Column.scalars("f32", [1.0, 2.0, 3.0]), "`x` is a column of one value a row"),
        (torch.zeros(3), r"`x` is \[3\]: a field of tokens is \[rows, positions\]"),
        (torch.zeros(3, 2), r"`x` is \[3, 2\], `response_mask` is \[3, 3\]"),
        (IN_COLUMNS, "`x` is a ragged Column, `response_mask` is right-padded: give both in one layout"),
        ([[1.0]], "`x` is a list: a tensor, a nested tensor or a Column is asked for"),
    ],
)
def test_other_layouts_and_shapes_are_refused(field: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tokens.of(MASK).read("x", field)


def test_columns_of_other_rows_are_refused() -> None:
    with pytest.raises(DataError, match="`x` is 2 rows of together 7 tokens, `response_mask` is 3 rows of together 7 tokens"):
        Tokens.of(IN_COLUMNS).read("x", Column.ragged("f32", [[0.0] * 4, [0.0] * 3]))


def test_a_nested_tensor_with_holes_is_refused() -> None:
    values, offsets, lengths = torch.zeros(6), torch.tensor([0, 3, 6]), torch.tensor([2, 3])
    holed = torch.nested.nested_tensor_from_jagged(values, offsets=offsets, lengths=lengths)
    with pytest.raises(DataError, match="`response_mask` is a nested tensor with holes"):
        Tokens.of(holed)


def test_one_value_a_row_of_any_kind() -> None:
    for given in (torch.tensor([3, 1]), Column.scalars("i64", [3, 1]), np.array([3, 1]), [3, 1]):
        assert per_row("uid", given, 2).tolist() == [3, 1]
    with pytest.raises(DataError, match=r"`uid` is \[2\], and there are 3 rows"):
        per_row("uid", [3, 1], 3)
