"""Columns <-> right-padded torch tensors, made at the last moment on the worker.

to_torch(column) -> Tensor [B, S] on the CPU, or list[str] of a text column
from_padded(tensor, lengths) -> ragged Column, whatever stands beyond the lengths
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlflow.errors import DataError

from .batch import Block
from .column import Column, cut, offsets_of
from .dtypes import NUMPY, Array

if TYPE_CHECKING:
    from torch import Tensor

NAMES = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16", "torch.int64": "i64"}
NAMES |= {"torch.int32": "i32", "torch.int16": "i16", "torch.bool": "flag"}


def to_torch(column: Column, width: int | None = None) -> Tensor | list[str]:
    """A tensor of its own memory: right-padded [B, width] with 0 / False, or [B] without a ragged axis. Text: list[str]."""
    import torch

    if column.dtype == "text":
        return column.to_list()
    array = column.padded(width)
    if column.offsets is None:
        array = array.copy()  # it may be a read-only view of the pool
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.view(torch.bfloat16) if column.dtype == "bf16" else tensor


def tensors(block: Block) -> dict[str, Tensor | list[str]]:
    """Every column of a block; those of one letter come out equally wide."""
    return {name: to_torch(column) for name, column in block.columns.items()}


def as_array(value: Tensor | Array) -> tuple[str, Array]:
    """(dtype, array in that dtype's storage) of a tensor or an array. Raises DataError for a dtype that no column has, as float64."""
    if isinstance(value, np.ndarray):
        found = next((name for name, dtype in NUMPY.items() if dtype == value.dtype and name not in ("bf16", "text")), None)
        if found is None:
            raise DataError(f"no column holds {value.dtype}: cast to one of {', '.join(NUMPY)} where it is made")
        return found, value
    import torch

    dtype = NAMES.get(str(value.dtype))
    if dtype is None:
        raise DataError(f"no column holds {value.dtype}: cast to one of {', '.join(NUMPY)} where it is made")
    detached = value if value.device.type == "cpu" and not value.requires_grad else value.detach().cpu()
    plain: Any = detached.contiguous().view(torch.int16).numpy().view(np.uint16) if dtype == "bf16" else detached.numpy()
    return dtype, plain


def from_padded(value: Tensor | Array, lengths: Array | None, *, axis: int = 1) -> Column:
    """Cut a right-padded tensor or array [B, ..., width at `axis`, ...] back to its rows' lengths, int[B]; None: one value a row.

    The column owns its memory. Raises DataError when a row is longer than the tensor is wide, or the counts of rows differ.
    """
    dtype, array = as_array(value)
    if lengths is None:
        return Column(dtype, np.array(array, order="C"))
    lengths = np.asarray(lengths, np.int64)
    if array.ndim <= axis or array.shape[0] != len(lengths):
        raise DataError(f"a tensor of shape {list(array.shape)} is not [{len(lengths)}, ...] with its tokens on axis {axis}")
    if (longest := int(lengths.max(initial=0))) > array.shape[axis]:
        raise DataError(f"row {int(lengths.argmax())} has {longest} tokens, the tensor is {array.shape[axis]} wide")
    return Column(dtype, cut(array, lengths, axis).copy(), offsets_of(lengths), axis)
