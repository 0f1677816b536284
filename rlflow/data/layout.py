"""A Block as one run of bytes that says itself what it holds; reading makes views, never copies.

    0    head      "RLFB" · serial of whoever stored it · bytes in all · bytes of the table
    32   table     msgpack: rows, and for each column name, dtype, where and how many
    ...  buffers   values and offsets as they lie in memory; at a multiple of 64 from 64 bytes on, of 8 below

Columns whose offsets are equal (all of one letter) share one buffer of offsets.
A block of one row and 13 columns takes about 600 bytes beside its data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from rlflow.errors import DataError

from .batch import Block
from .column import Column
from .dtypes import NUMPY, Array

HEAD = struct.Struct("<4sIQQ8x")  # magic, bytes of the table, serial, bytes in all
MAGIC = b"RLFB"
ALIGN = 64


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    """One column. Positions are bytes from the body's start, which follows the table at a multiple of ALIGN."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the values
    values: int
    offsets: int  # -1: none
    axis: int


class _Table(msgspec.Struct, array_like=True, frozen=True):
    rows: int
    columns: tuple[_Entry, ...]


_decode = msgspec.msgpack.Decoder(_Table).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of one block goes; `nbytes` in all, a multiple of 64."""

    nbytes: int
    table: bytes
    buffers: tuple[tuple[int, Array], ...]  # position from the body's start, what lies there


def plan(block: Block) -> Layout:
    """Lay a block out."""
    entries: list[_Entry] = []
    buffers: list[tuple[int, Array]] = []
    shared: dict[bytes, int] = {}
    end = 0

    def place(array: Array) -> int:
        nonlocal end
        position = _up(end, ALIGN if array.nbytes >= ALIGN else 8)
        end = position + array.nbytes
        buffers.append((position, array))
        return position

    for name, column in block.columns.items():
        values, offsets = place(column.values), -1
        if column.offsets is not None:
            same = column.offsets.tobytes()
            offsets = shared[same] if same in shared else shared.setdefault(same, place(column.offsets))
        entries.append(_Entry(name, column.dtype, column.values.shape, values, offsets, column.axis))
    table = _encode(_Table(block.rows, tuple(entries)))
    return Layout(_up(_body(len(table)) + end, ALIGN), table, tuple(buffers))


def write(layout: Layout, memory: memoryview, serial: int = 0) -> None:
    """Write a laid out block to `memory` (>= layout.nbytes, writable), its head last."""
    start = _body(len(layout.table))
    memory[HEAD.size : HEAD.size + len(layout.table)] = layout.table
    for position, array in layout.buffers:
        if array.size:
            np.copyto(np.ndarray(array.shape, array.dtype, memory, start + position), array)
    HEAD.pack_into(memory, 0, MAGIC, len(layout.table), serial, layout.nbytes)


def head_of(memory: memoryview) -> tuple[int, int]:
    """(serial, bytes in all) of what starts here; (0, 0) if no block does."""
    magic, _, serial, nbytes = HEAD.unpack_from(memory)
    return (serial, nbytes) if magic == MAGIC else (0, 0)


def read(memory: memoryview) -> Block:
    """The block that starts at `memory`, as read-only views of it. Raises DataError if none does."""
    magic, table_nbytes, _, nbytes = HEAD.unpack_from(memory)
    if magic != MAGIC or nbytes > len(memory):
        raise DataError(f"no block starts here: it opens with {bytes(magic)!r} and claims {nbytes} of {len(memory)} bytes")
    table = _decode(memory[HEAD.size : HEAD.size + table_nbytes])
    body = memory[_body(table_nbytes) : nbytes].toreadonly()
    return Block(dict(_columns(table, body)))


def _columns(table: _Table, body: memoryview) -> Iterator[tuple[str, Column]]:
    seen: dict[int, Array] = {-1: None}  # type: ignore[dict-item]  # -1: no offsets
    for entry in table.columns:
        if entry.offsets not in seen:
            seen[entry.offsets] = np.ndarray((table.rows + 1,), np.int64, body, entry.offsets)
        values: Array = np.ndarray(entry.shape, NUMPY[entry.dtype], body, entry.values)
        yield entry.name, Column(entry.dtype, values, seen[entry.offsets], entry.axis)


def _body(table_nbytes: int) -> int:
    return _up(HEAD.size + table_nbytes, ALIGN)


def _up(position: int, multiple: int) -> int:
    return -(-position // multiple) * multiple
