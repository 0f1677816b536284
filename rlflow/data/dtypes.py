"""The dtypes of a field: f32 f16 bf16 i64 i32 i16 flag text, and how each lies in memory.

name    numpy     note
bf16    uint16    numpy has no bfloat16: the bits are carried, `widen` gives their value
flag    bool      a mask
text    uint8     utf-8 bytes, a row's text between two offsets
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rlflow.errors import DataError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

NUMPY: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "flag": np.dtype(np.bool_),
    "text": np.dtype(np.uint8),
}
FLOATS = ("f32", "f16", "bf16")


def storage(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds `dtype`. Raises DataError for an unknown name."""
    try:
        return NUMPY[dtype]
    except KeyError:
        raise DataError(f"unknown dtype {dtype!r}: a column is one of {', '.join(NUMPY)}") from None


def store(dtype: str, data: Array | Sequence[Any]) -> Array:
    """Numbers as an array of `dtype`'s storage; raises DataError where a value would change (2.5 or 2**40 as i32, 1 as flag).

    Floats may lose precision, which is what a narrower float dtype is for. A uint16 array given as bf16 is taken as bits.
    """
    array, target = np.asarray(data), storage(dtype)
    if array.dtype == target or array.size == 0:
        return np.ascontiguousarray(array, target)
    if dtype in FLOATS and array.dtype.kind in "fiu":
        return bfloat16_bits(array.astype(np.float32)) if dtype == "bf16" else np.ascontiguousarray(array, target)
    if dtype in ("i64", "i32", "i16") and array.dtype.kind in "iu":
        bounds = np.iinfo(target)
        if bounds.min <= int(array.min()) and int(array.max()) <= bounds.max:
            return np.ascontiguousarray(array, target)
        raise DataError(f"{array.min()} .. {array.max()} does not fit {dtype}")
    raise DataError(f"cannot hold {array.dtype} values as {dtype}: convert them where they are made")


def bfloat16_bits(values: Array) -> Array:
    """float32 -> the upper 16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.asarray(np.where(np.isnan(values), np.uint32(0x7FC00000), rounded) >> np.uint32(16), np.uint16)


def widen(dtype: str, stored: Array) -> Array:
    """What is stored, as numbers that numpy can compute with: bf16 bits become float32, all else stays."""
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype == "bf16" else stored
