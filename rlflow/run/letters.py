"""The sizes of a result, from whoever knows them: an integer parameter, the arguments, the declaration, the result itself.

    judge(input_ids: i64[B, S], *, aspects: Annotated[int, K]) -> f32[B, K]     K from `aspects`, B from the argument
    rollout(prompts: i64[T, Q]) -> i64[B, S]     sizes={B: T, S: fresh()}       as many rows as trajectories; S read off the result
    branch(prompts: i64[P, Q]) -> i64[T, Q]      sizes={T: fresh(at_most=4*P)}  more than four a prompt is an error

What the compiler took for granted is held against what came out: the rows that were declared, and the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..compile.ir import Dim, Field, Node, Spec
from ..data.batch import Block
from ..data.column import Column
from ..data.shapes import Sizes, bind, evaluate
from ..data.torch import as_array
from ..errors import DataError

Made = Sequence[tuple[Field, Any]]


def sizes_of(node: Node, columns: Mapping[int, Column], made: Made) -> Sizes:
    """The letters of what `node` made. Raises DataError for arguments or results of other sizes than declared."""
    rows, given = made[0][0].declared, _given(node, columns)
    same = given.get(str(rows.shape[0])) if rows else None
    sizes = same or Sizes(
        count_rows(made[0][1]), {x: np.array([n]) for x, n in node.bound.items()}, dict.fromkeys(node.bound, node.name), frozenset()
    )
    found = {letter: size for letter, size in _read_off(made) if letter not in sizes.letters}
    sizes = Sizes(sizes.rows, {**sizes.letters, **found}, {**sizes.source, **dict.fromkeys(found, node.name)}, sizes.ragged | found.keys())
    if any(size.of is not None or size.at_most is not None for size in node.sizes.values()):
        _hold(node, made, _largest(node, given) | _largest_of(sizes) | _rows(made))
    return sizes


def _given(node: Node, columns: Mapping[int, Column]) -> dict[str, Sizes]:
    """Declared row axis -> the sizes of the arguments that have it."""
    by_rows: dict[str, dict[str, tuple[Spec, Column]]] = {}
    for use in node.uses:
        if use.declared and use.field in columns:
            by_rows.setdefault(str(use.declared.shape[0]), {})[use.param] = use.declared, columns[use.field]
    return {
        rows: bind({p: spec for p, (spec, _) in each.items()}, Block({p: column for p, (_, column) in each.items()}), fixed=node.bound)
        for rows, each in by_rows.items()
    }


def _read_off(made: Made) -> list[tuple[str, Any]]:
    """Sizes that only the run knows: true lengths from an attention mask, where there is one, else the width of the tensor."""
    widths: list[tuple[str, Any]] = []
    lengths: list[tuple[str, Any]] = []
    for field, value in made:
        spec = field.declared
        if spec is None or spec.dtype == "text" or isinstance(value, list):
            continue
        for axis, dim in enumerate(spec.shape[1:], 1):
            if (letter := dim.single) is None:
                continue
            if isinstance(value, Column):
                lengths.append((letter, _length(value, axis)))
            elif spec.role is not None and str(spec.role) == "mask(attention)":
                lengths.append((letter, as_array(value)[1].sum(-1)))
            else:
                widths.append((letter, np.full(len(value), value.shape[axis], np.int64)))
    return [*widths, *lengths]


def count_rows(value: Any) -> int:
    """Of a tensor, a list or a Column."""
    return value.rows if isinstance(value, Column) else len(value)


def _length(column: Column, axis: int) -> Any:
    """int64[rows]: the sizes of a column's rows on that axis of the padded tensor."""
    if column.offsets is not None and column.axis == axis:
        return column.lengths()
    fixed = axis - 1 if column.offsets is None or axis < column.axis else axis - 2
    inner = column.values.shape[1:]
    return np.full(column.rows, inner[fixed] if fixed < len(inner) else 0, np.int64)


def _largest(node: Node, given: Mapping[str, Sizes]) -> dict[str, int]:
    """Of the arguments: rows, and the largest size of every other letter."""
    found = dict(node.bound)
    for rows, sizes in given.items():
        found |= {rows: sizes.rows} | _largest_of(sizes)
    return found


def _largest_of(sizes: Sizes) -> dict[str, int]:
    return {letter: int(size.max(initial=0)) for letter, size in sizes.letters.items()}


def _rows(made: Made) -> dict[str, int]:
    return {str(field.declared.shape[0]): count_rows(value) for field, value in made if field.declared is not None}


def _hold(node: Node, made: Made, largest: dict[str, int]) -> None:
    rows = _rows(made)
    for letter, size in node.sizes.items():
        if letter not in largest:
            continue
        if letter in rows and size.of is not None and _known(size.of, largest) and evaluate(size.of, largest) != largest[letter]:
            raise DataError(
                f"`{node.name}` made {largest[letter]} rows where {letter} = {size.of} = {evaluate(size.of, largest)} is declared"
            )
        if size.at_most is not None and _known(size.at_most, largest) and largest[letter] > evaluate(size.at_most, largest):
            most = f"{size.at_most} = {evaluate(size.at_most, largest)}"
            raise DataError(f"`{node.name}` made {letter} = {largest[letter]} where at most {most} is declared")


def _known(dim: Dim, largest: Mapping[str, int]) -> bool:
    return dim.letters <= largest.keys()
