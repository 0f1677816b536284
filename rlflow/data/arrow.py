"""Block <-> one Arrow record batch, bit for bit; any Arrow reader opens it.

one number a row      the primitive type                        f32 -> float, flag -> bool, bf16 -> uint16 (its bits)
ragged                large_list of it                          offsets as they are
fixed axes inside     fixed_size_list of their product          [3] -> fixed_size_list(3); the sizes stand in the field's metadata
text                  large_binary                              utf-8 bytes, lone surrogates too

dtype, inner sizes and axis of a column stand in the metadata of its field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow

from rlflow.errors import DataError

from .batch import Block
from .column import Column
from .dtypes import NUMPY, Array

KEY = b"rlflow.column"
pa: Any = pyarrow  # it has no types


class _Kind(msgspec.Struct, array_like=True, frozen=True):
    """What Arrow's own type does not say."""

    dtype: str
    inner: tuple[int, ...]
    axis: int


def to_arrow(block: Block, metadata: Mapping[bytes, bytes]) -> Any:
    """A record batch over the memory of the block; ``metadata`` is that of its schema."""
    arrays = {name: _array(column) for name, column in block.columns.items()}
    schema = _schema(tuple((name, array.type, _kind(block[name])) for name, array in arrays.items()))
    return pa.record_batch(list(arrays.values()), schema=schema.with_metadata(dict(metadata)))


def from_arrow(batch: Any) -> Block:
    """The block of a record batch that ``to_arrow`` made, as views of its memory. Raises DataError for any other batch."""
    return Block({field.name: _column(field, array) for field, array in zip(batch.schema, batch.columns, strict=True)})


@lru_cache(256)  # of a process that writes, every block has one of a few
def _schema(fields: tuple[tuple[str, Any, _Kind], ...]) -> Any:
    return pa.schema([pa.field(name, kind, metadata={KEY: msgspec.json.encode(more)}) for name, kind, more in fields])


def _kind(column: Column) -> _Kind:
    return _Kind(column.dtype, column.values.shape[1:], column.axis)


def _array(column: Column) -> Any:
    if column.dtype == "text":
        assert column.offsets is not None
        buffers = [None, _buffer(column.offsets), _buffer(column.values)]
        return pa.Array.from_buffers(pa.large_binary(), column.rows, buffers)
    values = _numbers(column.values)
    return values if column.offsets is None else pa.LargeListArray.from_arrays(pa.array(column.offsets), values)


def _numbers(values: Array) -> Any:
    """[n, *inner] as n elements, each a list of fixed size if there are inner axes."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return flat
    each = pa.list_(flat.type, math.prod(values.shape[1:]))
    return pa.Array.from_buffers(each, len(values), [None], children=[flat])


def _buffer(array: Array) -> Any:
    return pa.py_buffer(np.ascontiguousarray(array))


def _column(field: Any, array: Any) -> Column:
    kind = msgspec.json.decode((field.metadata or {}).get(KEY, b"null"), type=_Kind | None)
    if kind is None or kind.dtype not in NUMPY:
        raise DataError(f"column `{field.name}` ({field.type}) was not written by rlflow: its field says no dtype")
    if kind.dtype == "text":
        _, offsets, values = array.buffers()
        text = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
        ends = _offsets(offsets, len(array))
        return Column("text", text[: ends[-1]], ends, kind.axis)
    if not pa.types.is_large_list(field.type):
        return Column(kind.dtype, _values(kind, array))
    return Column(kind.dtype, _values(kind, array.values), _offsets(array.buffers()[1], len(array)), kind.axis)


def _offsets(buffer: Any, rows: int) -> Array:
    """int64[rows + 1]; Arrow may leave the buffer of no rows out."""
    return np.frombuffer(buffer, np.int64)[: rows + 1] if rows else np.zeros(1, np.int64)


def _values(kind: _Kind, array: Any) -> Array:
    flat = array.values if pa.types.is_fixed_size_list(array.type) else array
    numbers: Array = flat.to_numpy(zero_copy_only=False)  # only flags are copied: Arrow packs eight into a byte
    return numbers.reshape(len(array), *kind.inner)
