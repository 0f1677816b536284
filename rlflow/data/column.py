"""One field of n rows, ragged: values and offsets, no padding anywhere.

    rows      [5, 7, 7]  []  [9]                    what a row holds: 3, 0 and 1 tokens
    values     5  7  7       9                      [tokens, *inner], token-major
    offsets    0  3  3  4                           int64[rows + 1]
    padded()  [[5, 7, 7], [0, 0, 0], [9, 0, 0]]     [B, S], made when an operator asks for it

    one number a row [B]             offsets None, values [rows]
    fixed axes inside, [B, 3, S]     values [tokens, 3], axis = 2: where the ragged axis stands in the padded tensor
    fixed axes behind, [B, S, L, K]  values [tokens, L, K], axis = 1
    text [B]                         utf-8 bytes between offsets

All rows of one length is still ragged: nothing is guessed from the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rlflow.errors import DataError

from .dtypes import NUMPY, Array, storage, store, widen

UTF8 = ("utf-8", "surrogatepass")  # a lone surrogate in a model's answer must survive the trip


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """values [tokens, *inner] with offsets int64[rows + 1], or values [rows, *inner] without. Treat the arrays as read-only."""

    dtype: str
    values: Array
    offsets: Array | None = None
    axis: int = 1  # of the padded tensor [B, ...]; meaningless without offsets

    def __post_init__(self) -> None:
        if self.values.dtype != NUMPY.get(self.dtype):
            raise DataError(f"a {self.dtype} column needs {storage(self.dtype)} values, got {self.values.dtype}")
        if self.offsets is None:
            if self.dtype == "text":
                raise DataError("a text column needs offsets: build it with Column.texts")
        elif self.offsets[0] != 0 or self.offsets[-1] != len(self.values):
            raise DataError(f"offsets run from {self.offsets[0]} to {self.offsets[-1]}, values hold {len(self.values)}")

    # --- from Python -----------------------------------------------------------------------------
    @staticmethod
    def scalars(dtype: str, values: Array | Sequence[Any]) -> Column:
        """One number (or one fixed-size array) a row."""
        return Column(dtype, store(dtype, values))

    @staticmethod
    def ragged(dtype: str, rows: Sequence[Array | Sequence[Any]], *, axis: int | None = None, inner: tuple[int, ...] = ()) -> Column:
        """One list or array a row. axis: the ragged axis in the padded tensor (default: the last).

        inner: the fixed sizes, for the case that no row has a token to show them. Raises DataError for rows of other shapes.
        """
        arrays = [np.asarray(row) for row in rows]
        full = [array for array in arrays if array.size]  # an empty list is float64 to numpy: it must not widen the others
        ndim = full[0].ndim if full else 1 + len(inner)
        axis = ndim if axis is None else axis
        lengths = np.fromiter((a.shape[axis - 1] if a.ndim == ndim else 0 for a in arrays), np.int64, len(arrays))
        try:
            values = np.concatenate([np.moveaxis(a, axis - 1, 0) for a in full]) if full else np.zeros((0, *inner), storage(dtype))
        except ValueError as error:
            raise DataError(f"rows differ in more than their length: {sorted({a.shape for a in full})}") from error
        return Column(dtype, store(dtype, values), offsets_of(lengths), axis)

    @staticmethod
    def texts(rows: Sequence[str]) -> Column:
        """One text a row."""
        encoded = [row.encode(*UTF8) for row in rows]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return Column("text", np.frombuffer(b"".join(encoded), np.uint8), offsets_of(lengths))

    @staticmethod
    def concat(columns: Sequence[Column]) -> Column:
        """Rows of one column after those of the next."""
        kinds = {(c.dtype, c.offsets is None, c.values.shape[1:], c.axis if c.offsets is not None else 0) for c in columns}
        if len(kinds) != 1:
            raise DataError(f"cannot join columns of different kinds (dtype, fixed, inner sizes, axis): {sorted(map(str, kinds))}")
        if len(columns) == 1:
            return columns[0]
        first, values = columns[0], np.concatenate([c.values for c in columns])
        if first.offsets is None:
            return Column(first.dtype, values)
        ends = [c.offsets[1:] for c in columns if c.offsets is not None]
        starts = offsets_of([len(c.values) for c in columns])[:-1]
        offsets = np.concatenate([[0], *ends])
        offsets[1:] += np.repeat(starts, [len(end) for end in ends])
        return Column(first.dtype, values, offsets, first.axis)

    # --- facts -----------------------------------------------------------------------------------
    @property
    def rows(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    def lengths(self) -> Array:
        """int64[rows]: tokens a row. Raises DataError for a column without a ragged axis."""
        if self.offsets is None or self.dtype == "text":
            raise DataError(f"a {self.dtype} column of one value a row has no lengths")
        return np.diff(self.offsets)

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit (a NaN equals itself)."""
        if not isinstance(other, Column):
            return NotImplemented
        mine, its = self._identity(), other._identity()
        return mine == its

    __hash__ = None  # type: ignore[assignment]  # equal by content, so not hashable

    def _identity(self) -> tuple[object, ...]:
        offsets = None if self.offsets is None else (self.axis, self.offsets.tobytes())
        return self.dtype, self.values.shape, offsets, np.ascontiguousarray(self.values).tobytes()

    def read_only(self) -> Column:
        """The same memory, where a write raises."""
        values = self.values.view()
        values.flags.writeable = False
        return Column(self.dtype, values, self.offsets, self.axis)

    # --- rows ------------------------------------------------------------------------------------
    def take(self, index: Array, gather: Array | None = None) -> Column:
        """Rows by index, each >= 0. gather: what `gather_of` gives for these offsets, where the caller has it already."""
        if self.offsets is None:
            return Column(self.dtype, self.values[index])
        gather = gather_of(self.offsets, index) if gather is None else gather
        return Column(self.dtype, self.values[gather], offsets_of(np.diff(self.offsets)[index]), self.axis)

    def between(self, start: int, stop: int) -> Column:
        """Rows start .. stop - 1, as a view."""
        if self.offsets is None:
            return Column(self.dtype, self.values[start:stop])
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        return Column(self.dtype, self.values[first:last], self.offsets[start : stop + 1] - first, self.axis)

    # --- to Python and to padded -----------------------------------------------------------------
    def padded(self, width: int | None = None) -> Array:
        """The right-padded array [B, width] (fixed axes where they belong), filled with 0 / False; the numpy dtype is the storage's.

        Raises DataError when a row is longer than `width`, and for text.
        """
        if self.dtype == "text":
            raise DataError("text has no padded form: use to_list()")
        if self.offsets is None:
            return self.values
        lengths = np.diff(self.offsets)
        longest = int(lengths.max(initial=0))
        width = longest if width is None else width
        if longest > width:
            raise DataError(f"row {int(lengths.argmax())} has {longest} tokens, the padded width is {width}")
        return np.moveaxis(_pad(self.values, lengths, width), 1, self.axis)

    def to_list(self) -> list[Any]:
        """One str, number or (nested) list a row."""
        if self.offsets is None:
            return list(widen(self.dtype, self.values).tolist())
        cuts = self.offsets.tolist()
        if self.dtype == "text":
            joined = self.values.tobytes()
            return [joined[a:b].decode(*UTF8) for a, b in pairwise(cuts)]
        values = widen(self.dtype, self.values)
        return [np.moveaxis(values[a:b], 0, self.axis - 1).tolist() for a, b in pairwise(cuts)]


def offsets_of(lengths: Array | Iterable[int]) -> Array:
    """int64[rows + 1] from int[rows]."""
    counted = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(counted) + 1, np.int64)
    np.cumsum(counted, out=offsets[1:])
    return offsets


def gather_of(offsets: Array, index: Array) -> Array:
    """int64[tokens]: where the tokens of the rows `index` lie, in that order."""
    lengths = np.diff(offsets)[index]
    target = offsets_of(lengths)
    gather = np.arange(target[-1])
    gather += np.repeat(offsets[index] - target[:-1], lengths)
    return gather


def cut(array: Array, lengths: Array, axis: int) -> Array:
    """Token-major values [tokens, *inner] of a right-padded array [B, ..., width at `axis`, ...]."""
    by_token = array if axis == 1 else np.moveaxis(array, axis, 1)
    width = by_token.shape[1]
    if bool((lengths == width).all()):
        return np.ascontiguousarray(by_token).reshape(-1, *by_token.shape[2:])
    return np.asarray(by_token[np.arange(width) < lengths[:, None]])


def _pad(values: Array, lengths: Array, width: int) -> Array:
    if bool((lengths == width).all()):
        return values.reshape(len(lengths), width, *values.shape[1:]).copy()
    out = np.zeros((len(lengths), width, *values.shape[1:]), values.dtype)
    out[np.arange(width) < lengths[:, None]] = values
    return out


def is_run(index: Array) -> bool:
    """Whether these are the rows i, i + 1, ..., so that views do."""
    return len(index) > 0 and int(index[-1]) - int(index[0]) == len(index) - 1 and bool((np.diff(index) == 1).all())
