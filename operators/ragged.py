"""Token fields in any layout, read as their trained tokens alone, row after row.

    layouts      right-padded tensors [B, R] | jagged nested tensors of torch | Columns of rlflow.data (ragged: no padding anywhere)

    response_mask         [[1, 1, 0], [0, 1, 1]]
    token_level_rewards   [[0, 2, 9], [9, 0, 4]]
    tokens = Tokens.of(response_mask)                    counts 2, 2
    x = tokens.read("token_level_rewards", rewards)      0 2 | 0 4           what is outside the mask is not even read
    tokens.sums(x)                                       2, 4                f64, a number a row
    tokens.each([5, 7])                                  5 5 | 7 7
    tokens.write(x)                                      [[0, 2, 0], [0, 0, 4]], 0 outside the mask, in the layout of response_mask

An operator that computes on `x` works in all layouts alike, on the trained tokens only, whatever the padded width. `@operator(ragged=True)`
makes the run time hand over its Columns as they lie, without building [B, R], and take Columns back.
The work is done on the host, in numpy: a mask that comes in runs is read and written at the speed of memory. Tensors of another device are
fetched, and results put back there. No torch is imported for Columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rlflow import Tensor
from rlflow.data.column import Column
from rlflow.data.dtypes import Array, widen
from rlflow.errors import DataError

__all__ = ["Tokens", "per_row", "segment_sums"]

BLOCK = 1 << 17  # trained tokens that are worked on at once: their float64 temporaries stay in the cache


@dataclass(frozen=True)
class Tokens:
    """Where the trained tokens of a batch are. Made by `Tokens.of`."""

    mask: Array  # bool [B, R], or [tokens] of a ragged layout
    offsets: Array | None  # int64 [B + 1] of a ragged layout
    counts: Array  # int64 [B]: trained tokens a row
    like: Any  # the mask as it was given: results get its layout

    @classmethod
    def of(cls, response_mask: Tensor | Column) -> Tokens:
        """response_mask: bool (or 0 / 1 of any dtype), in any layout. Raises DataError for one that has no row of tokens."""
        array, offsets = _laid("response_mask", response_mask)
        mask = array if array.dtype == np.bool_ else array != 0
        if offsets is None:
            counts = mask.view(np.uint8).sum(-1, dtype=np.uint32).astype(np.int64)
        else:
            counts = segment_sums(mask.view(np.uint8), np.diff(offsets), np.uint32).astype(np.int64)
        return cls(mask, offsets, counts, response_mask)

    @property
    def rows(self) -> int:
        return len(self.counts)

    @cached_property
    def starts(self) -> Array:
        """int64[B + 1]: where a row's trained tokens begin among those of all."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @property
    def total(self) -> int:
        return int(self.starts[-1])

    def read(self, name: str, field: Tensor | Column) -> Array:
        """[trained tokens] of a field with the mask's layout, not to be written to. Raises DataError for another layout or shape."""
        array, offsets = _laid(name, field)
        if (offsets is None) != (self.offsets is None):
            raise DataError(f"`{name}` is {_layout(field)}, `response_mask` is {_layout(self.like)}: give both in one layout")
        if array.shape[: self.mask.ndim] != self.mask.shape or not _same(offsets, self.offsets):
            raise DataError(f"`{name}` is {_shape(field)}, `response_mask` is {_shape(self.like)}")
        return array.reshape(-1, *array.shape[self.mask.ndim :]) if self.total == self.mask.size else array[self.mask]

    def finite(self, name: str, field: Tensor | Column, uid: Array | None = None) -> Array:
        """As `read`. Raises DataError that names the first row with NaN or infinity inside the mask."""
        values = self.read(name, field)
        refuse_not_finite(name, self.sums(values), uid)
        return values

    def sums(self, values: Array) -> Array:
        """f64[B]: of each row's trained tokens."""
        return segment_sums(values, self.counts)

    def each(self, of_rows: Array) -> Array:
        """[trained tokens]: each token its row's number."""
        return np.repeat(of_rows, self.counts)

    def write(self, values: Array) -> Any:
        """f32 in the layout of the mask, in memory of its own, 0 outside the mask. values: [trained tokens]."""
        if self.total == self.mask.size:
            out = values.astype(np.float32).reshape(self.mask.shape)
        else:
            out = np.zeros(self.mask.shape, np.float32)
            out[self.mask] = values
        return self._as_given(out)

    def write_mask(self, kept: Array) -> Any:
        """A flag in the layout of the mask, in memory of its own: False outside the mask. kept: bool [trained tokens]."""
        out = np.zeros(self.mask.shape, np.bool_)
        out[self.mask] = kept
        return self._as_given(out)

    def spread(self, of_rows: Array) -> Any:
        """`write(each(of_rows))`, without a temporary of all tokens."""
        values = of_rows.astype(np.float32)
        if self.total == self.mask.size:
            return self._as_given(self.each(values).reshape(self.mask.shape))
        out = np.zeros(self.mask.shape, np.float32)
        if self.offsets is not None:
            out[self.mask] = self.each(values)
        else:
            for rows, _ in self.blocks():
                out[rows][self.mask[rows]] = np.repeat(values[rows], self.counts[rows])
        return self._as_given(out)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """(rows, their trained tokens), whole rows at a time: BLOCK tokens and what the last row has more."""
        cuts = np.unique(np.searchsorted(self.starts, np.arange(0, self.total, BLOCK)))
        edges = [*dict.fromkeys([0, *cuts.tolist(), self.rows])]
        for first, last in pairwise(edges):
            yield slice(first, last), slice(int(self.starts[first]), int(self.starts[last]))

    def _as_given(self, out: Array) -> Any:
        if isinstance(self.like, Column):
            return Column("flag" if out.dtype == np.bool_ else "f32", out, self.offsets, self.like.axis)
        import torch

        tensor = torch.from_numpy(out).to(self.like.device)
        return torch.nested.nested_tensor_from_jagged(tensor, offsets=self.like.offsets()) if self.like.is_nested else tensor


def segment_sums(values: Array, lengths: Array, dtype: Any = np.float64) -> Array:
    """[len(lengths)]: sums over consecutive runs of `values`, 0 of an empty one, accumulated in `dtype` without a copy in it."""
    out = np.zeros(len(lengths), dtype)
    full = lengths > 0
    if full.any():
        starts = np.cumsum(lengths) - lengths
        out[full] = np.add.reduceat(values, starts[full], dtype=dtype)
    return out


def per_row(name: str, field: Any, rows: int) -> Array:
    """[B] of a field with one value a row. Raises DataError for another number of rows."""
    array = np.asarray(field) if isinstance(field, list) else _host(name, field)
    if array.shape != (rows,):
        raise DataError(f"`{name}` is {list(array.shape)}, and there are {rows} rows: it has one value a row, [{rows}]")
    return array


def refuse_not_finite(name: str, of_rows: Array, uid: Array | None = None) -> None:
    """Raise DataError naming the first row whose sum is not finite: it would poison its group, or a statistic of the batch."""
    bad = np.flatnonzero(~np.isfinite(of_rows))
    if len(bad):
        row = int(bad[0])
        whose = "" if uid is None else f" (uid {uid[row]})"
        raise DataError(f"{name} of row {row}{whose} hold NaN or infinity inside the response mask ({len(bad)} such rows)")


# --- layouts --------------------------------------------------------------------------------------------------------------------------
def _laid(name: str, field: Any) -> tuple[Array, Array | None]:
    """The numbers, [B, R] or [tokens], and the offsets of a ragged layout."""
    if isinstance(field, Column):
        if field.offsets is None:
            raise DataError(f"`{name}` is a column of one value a row, where a value a token is asked for")
        return widen(field.dtype, field.values), field.offsets
    if getattr(field, "is_nested", False):
        return _jagged(name, field)
    array = _host(name, field)
    if array.ndim < 2:
        raise DataError(f"`{name}` is {list(array.shape)}: a field of tokens is [rows, positions], right-padded, or ragged")
    return array, None


def _jagged(name: str, field: Any) -> tuple[Array, Array]:
    if str(field.layout) != "torch.jagged" or field.lengths() is not None:
        raise DataError(f"`{name}` is a nested tensor with holes or without offsets: make it with layout=torch.jagged, contiguous")
    return _host(name, field.values()), _host(name, field.offsets())


def _host(name: str, field: Any) -> Array:
    if isinstance(field, Column):
        return widen(field.dtype, field.values)
    if isinstance(field, np.ndarray):
        return field
    if not hasattr(field, "detach"):
        raise DataError(f"`{name}` is a {type(field).__name__}: a tensor, a nested tensor or a Column is asked for")
    tensor = field.detach().cpu()
    return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())


def _same(one: Array | None, two: Array | None) -> bool:
    return one is two or (one is not None and two is not None and np.array_equal(one, two))


def _layout(field: Any) -> str:
    return "a ragged Column" if isinstance(field, Column) else "a nested tensor" if getattr(field, "is_nested", False) else "right-padded"


def _shape(field: Any) -> str:
    array, offsets = _laid("", field)
    return str(list(array.shape)) if offsets is None else f"{len(offsets) - 1} rows of together {len(array)} tokens"
