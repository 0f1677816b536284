"""Block: n rows, named columns. What an operator is handed, and what goes to the pool.

    block = Block({"input_ids": Column.ragged("i64", [[1, 2, 3], [4, 5]]), "uid": Column.scalars("i64", [7, 7])})
    block.take([1, 0])          rows by index
    block.take([0, 1, -1, -2])  a negative index -1 - i makes pad row i

A pad row has what a real row has, and says that it is none:
    tokens 2 (of id 0; one less in a next-token column), masks False, floats 0, text "", is_pad True, uid = traj_uid = its index:
    a group of its own, equal to no real one, on whichever rank it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlflow.errors import DataError

from .column import Column as Column
from .column import gather_of, is_run, offsets_of
from .dtypes import Array

PAD_FLAG = "is_pad"
OWN_GROUP = ("uid", "traj_uid")  # a pad row's are its own (negative) index
PAD_TOKENS = 2  # so that a next-token column has one position


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of equally many rows. A block without columns has no rows."""

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        rows = self.rows
        for name, column in self.columns.items():
            if column.rows != rows:
                raise DataError(f"column `{name}` has {column.rows} rows, `{next(iter(self.columns))}` has {rows}")

    @property
    def rows(self) -> int:
        return next((column.rows for column in self.columns.values()), 0)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def __getitem__(self, name: str) -> Column:
        try:
            return self.columns[name]
        except KeyError:
            raise DataError(f"no column `{name}`: there are {', '.join(f'`{n}`' for n in self.columns) or 'none'}") from None

    def lengths(self, name: str) -> Array:
        """int64[rows]: tokens a row of a ragged column."""
        return self[name].lengths()

    def padded(self, name: str, width: int | None = None) -> Array:
        """The right-padded array of a column, see Column.padded."""
        return self[name].padded(width)

    def to_lists(self) -> dict[str, list[Any]]:
        return {name: column.to_list() for name, column in self.columns.items()}

    # --- columns ---------------------------------------------------------------------------------
    def select(self, names: Iterable[str]) -> Block:
        """Only these columns, as views."""
        return Block({name: self[name] for name in names})

    def join(self, other: Block) -> Block:
        """The columns of both, for the same rows. Raises DataError when a name is in both: a column has one writer."""
        if both := self.columns.keys() & other.columns.keys():
            raise DataError(f"column `{min(both)}` is in both blocks: a column is written once")
        return Block({**self.columns, **other.columns})

    # --- rows ------------------------------------------------------------------------------------
    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """Rows of one block after those of the next; all must have the same columns."""
        if not blocks:
            raise DataError("cannot join no blocks: their columns are unknown")
        names = list(blocks[0].columns)
        for block in blocks:
            if block.columns.keys() != set(names):
                raise DataError(f"blocks differ in columns: {sorted(block.columns.keys() ^ set(names))} are not in both")
        return Block({name: Column.concat([block.columns[name] for block in blocks]) for name in names})

    def take(self, index: Array | Sequence[int], *, pad_lengths: Mapping[str, int] | None = None) -> Block:
        """Rows by index; -1 - i makes pad row i.

        pad_lengths: tokens of a pad row in each ragged column (`shapes.pad_lengths` of the declared shapes). Without it they
        follow from the rows: the longest column has two, a column that is one shorter in every row has one.
        Raises DataError for an index beyond the rows, a pad row made twice, or lengths that do not follow.
        """
        wanted = np.asarray(index, np.int64)
        if int(wanted.max(initial=-1)) >= self.rows:
            raise DataError(f"row {int(wanted.max())} does not exist: the block has {self.rows} rows")
        if int(wanted.min(initial=0)) < 0:
            return self._take_padded(wanted, pad_lengths)
        if is_run(wanted):
            return Block({name: column.between(int(wanted[0]), int(wanted[-1]) + 1) for name, column in self.columns.items()})
        gathers: dict[bytes, Array] = {}  # columns of one letter share their offsets, and so the gather
        return Block({name: _take(column, wanted, gathers) for name, column in self.columns.items()})

    def _take_padded(self, index: Array, pad_lengths: Mapping[str, int] | None) -> Block:
        numbers = index[index < 0]
        if len(np.unique(numbers)) != len(numbers):
            raise DataError(f"pad rows are numbered -1, -2, ... once each, got {numbers.tolist()}")
        lengths = self._pad_lengths() if pad_lengths is None else pad_lengths
        pads = Block({name: _pad_column(name, column, numbers, lengths) for name, column in self.columns.items()})
        source = index.copy()
        source[index < 0] = self.rows + np.arange(len(numbers))
        return Block.concat([self, pads]).take(source)

    def _pad_lengths(self) -> dict[str, int]:
        ragged = {n: c.lengths() for n, c in self.columns.items() if c.offsets is not None and c.dtype != "text"}
        if not ragged:
            return {}
        if not self.rows:
            raise DataError("a block without rows does not show the lengths of a pad row: give pad_lengths")
        longest = max(ragged.values(), key=lambda lengths: int(lengths.sum()))
        out = {}
        for name, lengths in ragged.items():
            shorter = np.unique(longest - lengths)
            if len(shorter) != 1 or shorter[0] > PAD_TOKENS:
                raise DataError(f"the lengths of `{name}` do not follow those of the longest column: give pad_lengths")
            out[name] = PAD_TOKENS - int(shorter[0])
        return out


def _take(column: Column, index: Array, gathers: dict[bytes, Array]) -> Column:
    if column.offsets is None:
        return column.take(index)
    shape = column.offsets.tobytes()
    if shape not in gathers:
        gathers[shape] = gather_of(column.offsets, index)
    return column.take(index, gathers[shape])


def _pad_column(name: str, column: Column, numbers: Array, lengths: Mapping[str, int]) -> Column:
    rows, inner = len(numbers), column.values.shape[1:]
    if column.offsets is not None:
        tokens = 0 if column.dtype == "text" else lengths[name]
        return Column(column.dtype, np.zeros((rows * tokens, *inner), column.values.dtype), offsets_of([tokens] * rows), column.axis)
    values = np.zeros((rows, *inner), column.values.dtype)
    if name == PAD_FLAG:
        values[:] = True
    elif name in OWN_GROUP:
        values[:] = numbers + min(0, int(column.values.min(initial=0)))  # below those of pads that are already there
    return Column(column.dtype, values)
