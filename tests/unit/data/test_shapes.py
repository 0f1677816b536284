"""Declared shapes bound to rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlflow import dims, f32, flag, i16, i64, text
from rlflow.data.batch import Block, Column
from rlflow.data.shapes import bind, block_of_lists, column_of, pad_lengths
from rlflow.errors import DataError

B, S, L, G, Q = dims("B S L G Q")
R = S - 1
SPECS = {"input_ids": i64[B, S], "response_mask": flag[B, R], "uid": i64[B], "answer": text[B]}


def block() -> Block:
    tokens: dict[str, list[Any]] = {"input_ids": [[1, 2, 3], [4, 5]], "response_mask": [[True, False], [True]]}
    return block_of_lists(SPECS, {**tokens, "uid": [1, 2], "answer": ["", "a"]})


def test_sizes_of_each_row() -> None:
    sizes = bind(SPECS, block())
    assert sizes.of(S).tolist() == [3, 2]
    assert sizes.of(R).tolist() == [2, 1]
    assert (sizes.width(S), sizes.width(R)) == (3, 2)


def test_a_next_token_column_gives_the_tokens() -> None:
    sizes = bind(SPECS, block().select(["response_mask"]))
    assert sizes.of(S).tolist() == [3, 2]


def test_a_padded_result_is_cut_to_its_rows() -> None:
    advantages = torch.tensor([[0.5, 1.0], [2.0, 9.0]])
    assert column_of("advantages", f32[B, R], advantages, bind(SPECS, block())).to_list() == [[0.5, 1.0], [2.0]]


def test_a_result_of_one_value_a_row_stays_so() -> None:
    column = column_of("is_correct", f32[B], torch.tensor([0.0, 1.0]), bind(SPECS, block()))
    assert column == Column.scalars("f32", [0.0, 1.0])


def test_a_result_of_text() -> None:
    assert column_of("answer", text[B], ["x", "y"], bind(SPECS, block())).to_list() == ["x", "y"]


def test_rows_of_one_length_stay_ragged() -> None:
    sizes = bind({"input_ids": i64[B, S]}, Block({"input_ids": Column.ragged("i64", [[1, 2], [3, 4]])}))
    assert column_of("values", f32[B, S], torch.zeros(2, 2), sizes).lengths().tolist() == [2, 2]


def test_no_rows() -> None:
    empty = block().take([])
    sizes = bind(SPECS, empty)
    column = column_of("advantages", f32[B, R], torch.zeros(0, 5), sizes)
    assert (sizes.width(S), column.rows, column.offsets is not None) == (0, 0, True)


def test_off_by_one_is_refused() -> None:
    with pytest.raises(DataError, match=r"`advantages` is declared f32\[B, S - 1\], which is \[2, 2\] here; got \[2, 3\]"):
        column_of("advantages", f32[B, R], torch.zeros(2, 3), bind(SPECS, block()))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(DataError, match="got a i64 tensor: convert it where it is made"):
        column_of("advantages", f32[B, R], torch.zeros(2, 2, dtype=torch.int64), bind(SPECS, block()))


def test_columns_that_disagree_name_the_row() -> None:
    wrong = Block({"input_ids": Column.ragged("i64", [[1, 2], [1, 2, 3]]), "response_mask": Column.ragged("flag", [[True], [True]])})
    with pytest.raises(DataError, match="row 1: `response_mask` has 1 where S - 1 = 2 is declared; `input_ids` gives S = 3"):
        bind(SPECS, wrong)


def test_a_fixed_size_that_differs() -> None:
    with pytest.raises(DataError, match="row 0: `position_ids` has 2 where 3 is declared"):
        bind({"position_ids": i64[B, 3, S]}, Block({"position_ids": Column.ragged("i64", [[[1], [1]]])}))


def test_a_column_of_another_dtype() -> None:
    with pytest.raises(DataError, match="`uid` is declared i64, its column is f32"):
        bind(SPECS, Block({"uid": Column.scalars("f32", [1.0])}))


def test_a_column_of_other_axes() -> None:
    with pytest.raises(DataError, match=r"`uid` is declared with 1 axes, \[B\]; its column has 2"):
        bind(SPECS, Block({"uid": Column.ragged("i64", [[1]])}))


def test_a_letter_that_nothing_gives() -> None:
    with pytest.raises(DataError, match=r"no column gives the size `Q` of `Q`; known: S \(from `input_ids`\)"):
        bind(SPECS, block()).of(Q)


def test_a_letter_may_be_known_from_elsewhere() -> None:
    sizes = bind({}, block(), known={"S": np.array([3, 2])})
    assert column_of("old_log_probs", f32[B, R], torch.zeros(2, 2), sizes).lengths().tolist() == [2, 1]


def test_a_size_that_no_whole_number_makes() -> None:
    with pytest.raises(DataError, match="row 1: `pairs` has 3, which no S makes `2\\*S`"):
        bind({"pairs": i64[B, 2 * S]}, Block({"pairs": Column.ragged("i64", [[1, 2], [1, 2, 3]])}))


def test_a_letter_shared_by_all_rows() -> None:
    """Routes [B, S, L]: S differs by row, the L layers do not."""
    specs = {"routes": i16[B, S, L]}
    sizes = bind(specs, block_of_lists(specs, {"routes": [[[1, 2]], [[3, 4], [5, 6]]]}))
    assert sizes.of(L).tolist() == [2, 2]
    assert column_of("weights", f32[B, L], torch.zeros(2, 2), sizes).offsets is None
    assert column_of("routes", i16[B, S, L], torch.ones(2, 2, 2, dtype=torch.int16), sizes).lengths().tolist() == [1, 2]


def test_a_product_of_letters_is_found_when_the_others_are_known() -> None:
    specs = {"both": f32[B, S * L], "mask": flag[B, S], "scales": f32[B, L]}
    rows = {"both": Column.ragged("f32", [[0.0] * 6, [0.0] * 3]), "mask": Column.ragged("flag", [[True] * 2, [True]])}
    assert bind(specs, Block({**rows, "scales": Column("f32", np.zeros((2, 3), np.float32))})).of(L).tolist() == [3, 3]
    assert bind(specs, Block(rows)).of(L).tolist() == [3, 3]


def test_a_row_too_short_for_a_next_token() -> None:
    sizes = bind({"input_ids": i64[B, S]}, Block({"input_ids": Column.ragged("i64", [[1, 2], []])}))
    with pytest.raises(DataError, match="row 1: `S - 1` is -1: the row is too short"):
        sizes.of(R)


def test_lengths_of_a_pad_row_follow_the_declaration() -> None:
    specs = {**SPECS, "position_ids": i64[B, 3, S], "prompt_ids": i64[B, Q]}
    assert pad_lengths(specs) == {"input_ids": 2, "response_mask": 1, "position_ids": 2, "prompt_ids": 2}


def test_lists_are_ragged_as_declared_not_as_they_look() -> None:
    made = block_of_lists({"input_ids": i64[B, S], "position_ids": i64[B, 3, S]}, {"input_ids": [], "position_ids": []})
    assert [column.offsets is not None for column in made.columns.values()] == [True, True]
    assert made.padded("position_ids").shape == (0, 3, 0)


def test_lists_that_do_not_fit_name_the_field() -> None:
    with pytest.raises(DataError, match="`uid`: cannot hold float64 values as i64"):
        block_of_lists(SPECS, {"uid": [1.5]})
    with pytest.raises(DataError, match="`reward` is not declared: there are input_ids, response_mask, uid, answer"):
        block_of_lists(SPECS, {"reward": [1.0]})
