"""Declared shapes against real rows: i64[B, S] and f32[B, R] with R = S - 1, row by row.

    sizes = bind(specs, block)             S of every row from `input_ids` (or from a [B, R] column: S = R + 1); all columns must agree
    sizes.of(R)                            int64[B]
    column_of("advantages", spec, tensor, sizes)      a padded result [B, R] cut back to ragged rows
    block_of_lists(specs, lists)           rows as Python lists, ragged or not as declared
    pad_lengths(specs)                     tokens of a pad row in each column, for Block.take

Axis 0 is the row axis. A letter is a size per row where a ragged axis has it, one for all where a fixed axis has it ([B, S, L]: L layers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlflow.errors import DataError

from .batch import PAD_TOKENS, Block
from .column import Column
from .dtypes import Array
from .torch import from_padded

if TYPE_CHECKING:
    from torch import Tensor

    from rlflow.language.dims import Dim


class Spec(Protocol):
    """What is read of a field's declaration."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[Dim, ...]: ...


@dataclass(frozen=True)
class Sizes:
    """What the letters of the shapes are in one block."""

    rows: int
    letters: Mapping[str, Array]  # int64[rows] of a ragged axis, int64[1] of a fixed one
    source: Mapping[str, str]  # letter -> the column that gave it
    ragged: frozenset[str]  # letters that differ row by row
    _found: dict[Dim, tuple[Array, int]] = field(default_factory=dict, init=False, repr=False, compare=False)  # most columns share theirs

    def of(self, dim: Dim) -> Array:
        """int64[rows]. Raises DataError for a letter that no column gave, and for a row where the size is negative."""
        return self._of(dim)[0]

    def width(self, dim: Dim) -> int:
        """What the right-padded tensor has there: the largest over the rows, 0 without rows."""
        return self._of(dim)[1]

    def per_row(self, dim: Dim) -> bool:
        return not self.ragged.isdisjoint(dim.letters)

    def _of(self, dim: Dim) -> tuple[Array, int]:
        """The sizes and the largest of them."""
        if dim not in self._found:
            sizes = self._evaluated(dim)
            self._found[dim] = sizes, int(sizes.max(initial=0))
        return self._found[dim]

    def _evaluated(self, dim: Dim) -> Array:
        missing = sorted(dim.letters - self.letters.keys())
        if missing:
            known = ", ".join(f"{letter} (from `{self.source[letter]}`)" for letter in self.letters) or "none"
            raise DataError(f"no column gives the size `{missing[0]}` of `{dim}`; known: {known}")
        sizes = np.broadcast_to(_evaluate(dim, self.letters), (self.rows,))
        if int(sizes.min(initial=0)) < 0:
            row = int(sizes.argmin())
            raise DataError(f"row {row}: `{dim}` is {sizes[row]}: the row is too short")
        return sizes


def bind(
    specs: Mapping[str, Spec], block: Block, known: Mapping[str, Array] | None = None, *, fixed: Mapping[str, int] | None = None
) -> Sizes:
    """The size of every letter in every row, from the columns of `block` that `specs` declares (and `known` ones, int[rows]).

    fixed: letters that are the same in all rows, whatever the columns say.

    Raises DataError that names row, column and sizes where a column is not as declared or two disagree.
    """
    seen = [entry for name, spec in specs.items() if name in block.columns for entry in _observe(name, spec, block[name])]
    letters = {letter: np.asarray(sizes, np.int64) for letter, sizes in (known or {}).items()}
    source = dict.fromkeys(letters, "known")
    ragged = set(letters)
    letters |= {letter: np.array([size]) for letter, size in (fixed or {}).items()}
    source |= dict.fromkeys(fixed or {}, "a parameter")
    while seen:
        rest = [entry for entry in seen if not _settle(entry, letters, source, ragged)]
        if len(rest) == len(seen):
            name, dim, _, _ = rest[0]
            missing = ", ".join(sorted(dim.letters - letters.keys()))
            raise DataError(f"`{name}`: the sizes {missing} of `{dim}` do not follow from the columns")
        seen = rest
    return Sizes(block.rows, letters, source, frozenset(ragged))


_Seen = tuple[str, "Dim", Array, bool]  # column, declared size of one axis, real size int64[rows] or [1], whether the axis is ragged


def _observe(name: str, spec: Spec, column: Column) -> list[_Seen]:
    if column.dtype != spec.dtype:
        raise DataError(f"`{name}` is declared {spec.dtype}, its column is {column.dtype}")
    if column.dtype == "text":
        return []
    shape = [np.array([size]) for size in column.values.shape[1:]]
    if column.offsets is not None:
        shape.insert(column.axis - 1, column.lengths())
    if len(shape) != len(spec.shape) - 1:
        declared = ", ".join(map(str, spec.shape))
        raise DataError(f"`{name}` is declared with {len(spec.shape)} axes, [{declared}]; its column has {len(shape) + 1}")
    ragged = column.axis if column.offsets is not None else -1
    return [(name, dim, size, i == ragged) for i, (dim, size) in enumerate(zip(spec.shape[1:], shape, strict=True), 1)]


def _settle(entry: _Seen, letters: dict[str, Array], source: dict[str, str], ragged: set[str]) -> bool:
    """Use one observed size: to check, if all its letters are known, or to find the only one that is not. False: neither yet."""
    name, dim, real, is_ragged = entry
    unknown = sorted(dim.letters - letters.keys())
    if len(unknown) > 1:
        return False
    if unknown:
        letter = unknown[0]
        letters[letter], source[letter] = _solve(name, dim, letter, real, letters), name
        if is_ragged:
            ragged.add(letter)
    wanted, found = np.broadcast_arrays(_evaluate(dim, letters), real)
    if (wrong := np.flatnonzero(wanted != found)).size:
        row = int(wrong[0])
        given = ", ".join(f"`{source[x]}` gives {x} = {np.broadcast_to(letters[x], found.shape)[row]}" for x in sorted(dim.letters))
        size = f"{dim} = {wanted[row]} is declared; {given}" if given else f"{dim} is declared"
        raise DataError(f"row {row}: `{name}` has {found[row]} where {size}")
    return True


def _solve(name: str, dim: Dim, letter: str, real: Array, letters: Mapping[str, Array]) -> Array:
    """dim = factor * letter + rest = real, for the letter."""
    factor, rest = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for monomial, k in dict(dim.terms).items():
        if monomial.count(letter) > 1:
            raise DataError(f"`{name}`: cannot find {letter} from `{dim}`: declare another column with it")
        term = k * prod((letters[x] for x in monomial if x != letter), start=np.ones(1, np.int64))
        if letter in monomial:
            factor = factor + term
        else:
            rest = rest + term
    exact = (factor != 0) & ((real - rest) % np.where(factor, factor, 1) == 0)
    sizes = (real - rest) // np.where(factor, factor, 1)
    if (wrong := np.flatnonzero(~exact | (sizes < 0))).size:
        row = int(wrong[0])
        raise DataError(f"row {row}: `{name}` has {np.broadcast_to(real, sizes.shape)[row]}, which no {letter} makes `{dim}`")
    return sizes


def evaluate(dim: Dim, numbers: Mapping[str, int]) -> int:
    """A size where every letter is a number."""
    return int(_evaluate(dim, {letter: np.array([numbers[letter]]) for letter in dim.letters})[0])


def _evaluate(dim: Dim, letters: Mapping[str, Array]) -> Array:
    terms = (k * prod((letters[x] for x in monomial), start=np.ones(1, np.int64)) for monomial, k in dict(dim.terms).items())
    return sum(terms, start=np.zeros(1, np.int64))


# --- results --------------------------------------------------------------------------------------------------------------------------
def column_of(name: str, spec: Spec, value: Tensor | Array | Sequence[str] | Column, sizes: Sizes) -> Column:
    """What an operator returned for one field, as a column: padded tensors are cut to each row's length, a Column is taken as it is.

    Raises DataError where dtype or shape are not as declared, an off-by-one width included.
    """
    if isinstance(value, Column):
        return _as_declared(name, spec, value, sizes)
    if spec.dtype == "text":
        if len(value) != sizes.rows:
            raise DataError(f"{_declared(name, spec)} with {sizes.rows} rows, got {len(value)} texts")
        return Column.texts([str(text) for text in value])
    shape = (sizes.rows, *(sizes.width(dim) for dim in spec.shape[1:]))
    got: Any = getattr(value, "shape", None)
    if got is None or len(got) != len(shape) or (tuple(got) != shape and sizes.rows) or got[0] != sizes.rows:
        raise DataError(f"{_declared(name, spec)}, which is {list(shape)} here; got {'no tensor' if got is None else list(got)}")
    axes = [i for i, dim in enumerate(spec.shape) if i and sizes.per_row(dim)]
    if len(axes) > 1:
        raise DataError(f"{_declared(name, spec)}: a column has one ragged axis, these are {len(axes)}")
    lengths = sizes.of(spec.shape[axes[0]]) if axes else None
    column = from_padded(value, lengths, axis=axes[0] if axes else 1)  # type: ignore[arg-type]  # has a shape
    if column.dtype != spec.dtype:
        raise DataError(f"{_declared(name, spec)}, got a {column.dtype} tensor: convert it where it is made")
    return column


def _as_declared(name: str, spec: Spec, column: Column, sizes: Sizes) -> Column:
    """In memory of its own: what is read-only is an input's, and offsets often are."""
    if column.dtype != spec.dtype or column.rows != sizes.rows:
        raise DataError(f"{_declared(name, spec)} with {sizes.rows} rows, got a {column.dtype} column of {column.rows}")
    for _, dim, real, is_ragged in _observe(name, spec, column):
        wanted, found = np.broadcast_arrays(sizes.of(dim), real)
        if (wrong := np.flatnonzero(wanted != found)).size or is_ragged != sizes.per_row(dim):
            row = int(wrong[0]) if wrong.size else 0
            raise DataError(f"{_declared(name, spec)}: row {row} has {found[row]} where {dim} = {wanted[row]}")
    values = column.values if column.values.flags.writeable else column.values.copy()
    return Column(column.dtype, values, None if column.offsets is None else column.offsets.copy(), column.axis)


def _declared(name: str, spec: Spec) -> str:
    return f"`{name}` is declared {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def block_of_lists(specs: Mapping[str, Spec], lists: Mapping[str, Sequence[Any]]) -> Block:
    """Rows as Python lists (or arrays) of each declared field. The first axis whose size has a letter is ragged."""
    return Block({name: _from_list(name, specs, rows) for name, rows in lists.items()})


def pad_lengths(specs: Mapping[str, Spec]) -> dict[str, int]:
    """Tokens of a pad row in every ragged column: what its size is where every letter is 2 (S: 2, R = S - 1: 1)."""
    out = {}
    for name, spec in specs.items():
        if spec.dtype != "text" and (axis := ragged_axis(spec)):
            dim = spec.shape[axis]
            out[name] = max(0, int(_evaluate(dim, dict.fromkeys(dim.letters, np.array([PAD_TOKENS])))[0]))
    return out


def ragged_axis(spec: Spec) -> int:
    """The first axis after the rows whose size has a letter; 0: none."""
    return next((i for i, dim in enumerate(spec.shape) if i and dim.letters), 0)


def _from_list(name: str, specs: Mapping[str, Spec], rows: Sequence[Any]) -> Column:
    spec = specs.get(name)
    if spec is None:
        raise DataError(f"`{name}` is not declared: there are {', '.join(specs)}")
    try:
        if spec.dtype == "text":
            return Column.texts(rows)
        if not (axis := ragged_axis(spec)):
            return Column.scalars(spec.dtype, rows)
        inner = tuple(_number(dim) for i, dim in enumerate(spec.shape) if i not in (0, axis))
        return Column.ragged(spec.dtype, rows, axis=axis, inner=inner)
    except DataError as error:
        raise DataError(f"`{name}`: {error}") from error


def _number(dim: Dim) -> int:
    return 0 if dim.letters else int(_evaluate(dim, {})[0])
