"""Blocks as bytes: self-describing, aligned, read as views."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlflow.data import layout
from rlflow.data.batch import Block, Column
from rlflow.errors import DataError

DTYPES = ["f32", "f16", "bf16", "i64", "i32", "i16", "flag"]


def through_bytes(block: Block) -> Block:
    laid = layout.plan(block)
    memory = bytearray(b"\xaa" * laid.nbytes)  # what was there before must not show
    layout.write(laid, memoryview(memory))
    return layout.read(memoryview(memory))


def numbers(dtype: str, count: int) -> np.ndarray:
    storage = Column.scalars(dtype, []).values.dtype
    return np.random.default_rng(count).integers(0, 2, count).astype(storage)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[], [0], [3], [2, 2], [5, 0, 1]], ids=str)
def test_every_dtype_ragged_and_fixed(dtype: str, lengths: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    block = Block({"ragged": Column(dtype, numbers(dtype, sum(lengths)), offsets), "fixed": Column(dtype, numbers(dtype, len(lengths)))})
    assert through_bytes(block) == block


@given(st.lists(st.tuples(st.text(max_size=3), st.lists(st.integers(-9, 9), max_size=4)), max_size=5))
def test_text_and_tokens_come_back(rows: list[tuple[str, list[int]]]) -> None:
    back = through_bytes(Block({"text": Column.texts([t for t, _ in rows]), "ids": Column.ragged("i64", [x for _, x in rows])}))
    assert back.to_lists() == {"text": [t for t, _ in rows], "ids": [x for _, x in rows]}


def test_fixed_axes_come_back() -> None:
    block = Block({"position_ids": Column.ragged("i64", [[[1, 2]] * 3, [[3]] * 3]), "routes": Column.ragged("i16", [[[1, 2]], []], axis=1)})
    assert through_bytes(block) == block


def test_no_columns() -> None:
    assert through_bytes(Block({})).rows == 0


def test_views_are_read_only_and_copy_nothing() -> None:
    laid = layout.plan(Block({"a": Column.ragged("i64", [[1, 2, 3]])}))
    memory = bytearray(laid.nbytes)
    layout.write(laid, memoryview(memory))
    values = layout.read(memoryview(memory))["a"].values
    assert np.shares_memory(values, np.frombuffer(memory, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 9


def test_buffers_of_64_bytes_or_more_are_aligned() -> None:
    block = Block({"a": Column.scalars("flag", [True] * 65), "b": Column.scalars("f32", [1.0] * 65), "c": Column.scalars("i64", [1] * 65)})
    memory = bytearray(8192)
    view = memoryview(memory)[-np.frombuffer(memory, np.uint8).ctypes.data % 64 :]
    layout.write(layout.plan(block), view)
    assert [column.values.ctypes.data % 64 for column in layout.read(view).columns.values()] == [0, 0, 0]


def test_columns_of_one_letter_share_their_offsets() -> None:
    one = layout.plan(Block({"a": Column.ragged("flag", [[True]] * 1000)})).nbytes
    two = layout.plan(Block({"a": Column.ragged("flag", [[True]] * 1000), "b": Column.ragged("flag", [[True]] * 1000)})).nbytes
    assert two - one < 1200  # 1,000 flags and a line of the table, not 8,008 bytes of offsets again


def one_row() -> Block:
    tokens = {name: Column.ragged("i64", [[1] * 20]) for name in ("input_ids", "position_ids")}
    shifted = {name: Column.ragged("i64", [[1] * 19]) for name in ("responses", "response_mask", "rollout_log_probs")}
    fixed = {name: Column.scalars("i64", [1]) for name in ("uid", "traj_uid", "leaf", "version_tag", "is_pad")}
    return Block({**tokens, **shifted, **fixed, "answer": Column.texts(["12"]), "response_text": Column.texts(["a b"])})


def test_a_row_costs_less_than_a_kilobyte_beside_its_data() -> None:
    assert layout.plan(one_row()).nbytes - one_row().nbytes < 700


def test_a_row_is_written_and_read_in_some_microseconds() -> None:
    block, memory = one_row(), memoryview(bytearray(4096))
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        layout.write(layout.plan(block), memory)
        layout.read(memory)
        best = min(best, time.perf_counter() - start)
    assert best < 300e-6  # 60 us when the machine is idle


def test_bytes_that_are_no_block() -> None:
    with pytest.raises(DataError, match="no block starts here"):
        layout.read(memoryview(bytes(64)))


def test_a_block_cut_short() -> None:
    laid = layout.plan(one_row())
    memory = bytearray(laid.nbytes)
    layout.write(laid, memoryview(memory))
    with pytest.raises(DataError, match=f"claims {laid.nbytes} of {laid.nbytes - 64} bytes"):
        layout.read(memoryview(memory)[:-64])
