"""Columns and padded torch tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlflow.data.batch import Block, Column
from rlflow.data.torch import from_padded, tensors, to_torch
from rlflow.errors import DataError

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "flag": torch.bool,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[], [0], [2], [3, 3], [1, 0, 4]], ids=str)
def test_padded_and_back(dtype: str, lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.rand(n, generator=generator).mul(3).to(DTYPES[dtype]) for n in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 0, dtype=DTYPES[dtype])
    column = from_padded(padded, np.array(lengths))
    tensor = to_torch(column)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == DTYPES[dtype]
    assert torch.equal(tensor, padded)
    assert column.rows == len(lengths)
    assert column.lengths().tolist() == lengths


def test_bfloat16_values_are_those_of_torch() -> None:
    values = torch.tensor([1.00390625, -3.14159, 1e30, 0.0])
    column = Column.scalars("bf16", values.numpy())
    assert column.to_list() == values.bfloat16().float().tolist()
    back = to_torch(column)
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back, values.bfloat16())


def test_what_stands_behind_a_row_is_cut_off() -> None:
    assert from_padded(torch.tensor([[1, 9, 9], [2, 3, 9]]), np.array([1, 2])).to_list() == [[1], [2, 3]]


def test_three_axes() -> None:
    padded = torch.arange(12).reshape(2, 3, 2)
    column = from_padded(padded, np.array([2, 1]), axis=2)
    assert column.to_list() == [[[0, 1], [2, 3], [4, 5]], [[6], [8], [10]]]


def test_a_gradient_does_not_come_along() -> None:
    tensor = torch.ones(2, 1, requires_grad=True)
    assert from_padded(tensor, np.array([1, 1])).to_list() == [[1.0], [1.0]]


def test_a_tensor_of_read_only_bytes_has_memory_of_its_own() -> None:
    values = np.arange(3)
    values.flags.writeable = False
    tensor = to_torch(Column("i64", values))
    assert isinstance(tensor, torch.Tensor)
    tensor[0] = 5
    assert values.tolist() == [0, 1, 2]


def test_text_is_a_list() -> None:
    assert tensors(Block({"answer": Column.texts(["a", ""])})) == {"answer": ["a", ""]}


def test_float64_is_refused() -> None:
    with pytest.raises(DataError, match=r"no column holds torch.float64: cast to one of f32"):
        from_padded(torch.zeros(1, 1, dtype=torch.float64), None)


def test_a_row_longer_than_the_tensor() -> None:
    with pytest.raises(DataError, match="row 1 has 3 tokens, the tensor is 2 wide"):
        from_padded(torch.zeros(2, 2), np.array([1, 3]))


def test_rows_and_lengths_must_agree() -> None:
    with pytest.raises(DataError, match=r"a tensor of shape \[2, 2\] is not \[3, ...\]"):
        from_padded(torch.zeros(2, 2), np.array([1, 1, 1]))
