"""Rows of padded tensors: how long they are, and what a pad row counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlflow.data import tensors
from rlflow.errors import DataError

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
POSITIONS = torch.tensor([[0, 1, 2], [0, 0, 0], [0, 0, 0]])
RESPONSES = torch.tensor([[False, True], [False, False], [False, False]])
PADS = torch.tensor([False, False, True])


def test_lengths_by_attention_mask_and_two_of_a_pad_row() -> None:
    assert tensors.lengths({"attention_mask": MASK, "is_pad": PADS}).tolist() == [3, 1, 2]


def test_lengths_by_positions_of_two_and_of_three_axes() -> None:
    assert tensors.lengths({"position_ids": POSITIONS, "is_pad": PADS}).tolist() == [3, 1, 2]
    assert tensors.lengths({"position_ids": POSITIONS[:, None].expand(3, 3, 3), "is_pad": PADS}).tolist() == [3, 1, 2]


def test_lengths_by_the_last_response_token() -> None:
    assert tensors.lengths({"response_mask": RESPONSES, "is_pad": PADS}).tolist() == [3, 0, 2]


def test_tensors_without_width_or_rows() -> None:
    assert tensors.lengths({"response_mask": torch.zeros(2, 0, dtype=torch.bool)}).tolist() == [0, 0]
    assert tensors.lengths({"attention_mask": torch.zeros(0, 4, dtype=torch.bool)}).tolist() == []


def test_rows_must_agree() -> None:
    with pytest.raises(DataError, match=r"the fields have different numbers of rows: \{'uid': 1, 'answer': 2\}"):
        tensors.rows_of({"uid": torch.zeros(1), "answer": ["a", "b"]})


def test_what_is_taken_is_a_copy() -> None:
    uid = torch.tensor([3, 4])
    taken = tensors.take({"uid": uid}, np.array([0, 1]))["uid"]
    assert isinstance(taken, torch.Tensor)
    taken[0] = 9
    assert uid.tolist() == [3, 4]
