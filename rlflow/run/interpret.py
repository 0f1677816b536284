"""Calls an operator as the plain function that it is: columns in, columns out.

    blocks ── fetch ──▶ columns ── right-padded tensors, records, weight handles, config ──▶ fn(worker, **arguments)
                                                                                                    │
    block ◀── cut to the true lengths ◀── tensors ◀────────────────────────────────────────────────┘

Nothing here knows what an operator means. Names of fields, shapes and dtypes come from the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..compile.ir import Field, Node
from ..data.batch import Block
from ..data.column import Column
from ..data.pool.protocol import Pool
from ..data.shapes import Sizes, bind, column_of, pad_lengths
from ..data.torch import as_array, to_torch
from ..errors import DataError
from ..language.config import from_config, resolve
from ..language.feedback import Handle
from ..language.loss import Objective
from ..language.worker import Worker
from .graph import GraphView
from .messages import Source

Columns = Mapping[int, Column]  # by field id


class Interpreter:
    """Runs nodes of one plan in one process. workers: those of the plan, by id; an operator may be handed any of them."""

    def __init__(self, view: GraphView, workers: Mapping[int, Worker]) -> None:
        self.view, self.workers = view, workers
        self._functions: dict[int, Any] = {}

    def run(
        self, node: Node, columns: Columns, *, version: int, cuts: Sequence[Sequence[int]] = (), config: Mapping[str, Any] | None = None
    ) -> tuple[dict[int, Column], dict[str, float]]:
        """The columns that `node` makes, by field id, and the numbers that it returned.

        version: of the weights that it reads. cuts: micro-batch sizes of each mini-batch, for a node that trains.
        config: parameters that take the place of the plan's.
        """
        given = {use.param: columns[use.field] for use in node.uses if use.field in columns}
        arguments = {name: from_config(value, self.workers) for name, value in node.params.items()} | dict(config or {})
        arguments |= {use.param: Handle(use.name, use.reading, version, self.workers.get(use.owner)) for use in node.weights}
        arguments |= {name: to_torch(column) for name, column in given.items() if "." not in name}
        for param, ref in node.records.items():
            fields = {name.partition(".")[2]: column for name, column in given.items() if name.startswith(f"{param}.")}
            arguments[param] = self._objective(node, ref, fields, cuts) if node.losses else make_record(ref, Block(fields))
        worker = self.workers[node.worker] if node.worker is not None else None
        if worker is not None:
            worker.measured = {}
        result = self._function(node)(**arguments)
        numbers = result if isinstance(result, dict) else worker.measured if worker is not None else {}
        if node.rows == "filter":
            numbers = {"rows": _rows_of(result)}
        return self._columns(node, given, result), {name: float(value) for name, value in numbers.items()}

    def _function(self, node: Node) -> Any:
        if node.id not in self._functions:
            assert node.operator is not None
            method = node.operator.rpartition(".")[2]
            self._functions[node.id] = resolve(node.operator) if node.worker is None else getattr(self.workers[node.worker], method)
        return self._functions[node.id]

    def _objective(self, node: Node, ref: str, fields: dict[str, Column], cuts: Sequence[Sequence[int]]) -> Objective[Any, Any]:
        """Mini-batches of micro-batches, cut out of the rows of this rank in their order."""
        losses = tuple(from_config({"$data": loss.ref, **loss.options}, {}) for loss in node.losses if loss.active)
        ends = np.cumsum([size for mini in cuts for size in mini])
        block, starts = Block(fields), iter(np.concatenate([[0], ends[:-1]]))
        parts = tuple(tuple(make_record(ref, block.take(np.arange(start := next(starts), start + n))) for n in mini) for mini in cuts)
        return Objective(rows=None, losses=losses, parts=parts)

    # --- results ------------------------------------------------------------------------------------------------------------------
    def _columns(self, node: Node, given: Mapping[str, Column], result: Any) -> dict[int, Column]:
        fields = [self.view.graph.fields[i] for i in node.outs]
        if node.result.kind == "field":
            values = {fields[0].id: (fields[0], result)}
        elif node.result.kind == "record":
            values = {field.id: (field, getattr(result, field.name)) for field in fields}
        else:
            return {}
        sizes = self._sizes(node, given, list(values.values()))
        return {i: _column(node, field, value, sizes) for i, (field, value) in values.items()}

    def _sizes(self, node: Node, given: Mapping[str, Column], made: Sequence[tuple[Field, Any]]) -> Sizes:
        """Letters of the results: those of the arguments where the rows are the same, else read off the results."""
        declared = {use.param: use.declared for use in node.uses if use.declared is not None and use.param in given}
        rows = {str(spec.shape[0]) for spec in declared.values()}
        field, value = made[0]
        if field.declared is not None and str(field.declared.shape[0]) in rows:
            return bind(declared, Block({name: given[name] for name in declared}))
        letters = dict(_letters(made))
        return Sizes(len(value), letters, dict.fromkeys(letters, node.name), frozenset(letters))


def _letters(made: Sequence[tuple[Field, Any]]) -> list[tuple[str, Any]]:
    """Sizes that only the run knows: true lengths from an attention mask, where there is one, else the width of the tensor."""
    known: list[tuple[str, Any]] = []
    by_mask = sorted(made, key=lambda pair: str(pair[0].declared and pair[0].declared.role) == "mask(attention)")
    for field, value in by_mask:
        spec = field.declared
        if spec is None or spec.dtype == "text" or isinstance(value, list):
            continue
        is_mask = str(spec.role) == "mask(attention)"
        for axis, dim in enumerate(spec.shape[1:], 1):
            if str(dim) in dim.letters:
                known.append((str(dim), as_array(value)[1].sum(-1) if is_mask else np.full(len(value), value.shape[axis], np.int64)))
    return known


def _column(node: Node, field: Field, value: Any, sizes: Sizes) -> Column:
    assert field.declared is not None
    if isinstance(value, list) and field.declared.dtype != "text":
        return Column.ragged(field.declared.dtype, [as_array(row)[1] for row in value])
    try:
        return column_of(field.name, field.declared, value, sizes)
    except DataError as error:
        raise DataError(f"result of `{node.name}`: {error}") from error


def make_record(ref: str, block: Block) -> Any:
    """An instance of a record class whose live fields are right-padded tensors; what the plan dropped is not there."""
    record = object.__new__(resolve(ref))
    for name, column in block.columns.items():
        object.__setattr__(record, name, to_torch(column))
    return record


def _rows_of(record: Any) -> int:
    """How many rows a filter kept."""
    return len(next(iter(vars(record).values())))


def block_of(columns: Columns) -> Block:
    """Columns under their field ids, as one block."""
    sizes = {column.rows for column in columns.values()}
    if len(sizes) > 1:
        raise DataError(f"an operator made columns of {sorted(sizes)} rows; all of a result have as many")
    return Block({str(i): column for i, column in columns.items()})


def fetch(view: GraphView, node: Node, source: Source, pool: Pool) -> dict[int, Column]:
    """The columns that `node` reads of one producer, by the field it knows them as; only its rows, pad rows made."""
    wanted = {view.graph.origin(use.field).id: use.field for use in node.uses}
    blocks = [pool.view(key) for key in source.keys]
    here = [i for i in wanted if str(i) in blocks[0].columns]
    columns = {i: Column.concat([block[str(i)] for block in blocks]) for i in here}
    if source.take is not None:
        columns = _take(view, columns, np.array(source.take, np.int64))
    return {wanted[i]: column for i, column in columns.items()}


def _take(view: GraphView, columns: dict[int, Column], index: Any) -> dict[int, Column]:
    """Rows by number; a pad row is made by the names of the fields (`is_pad` is True there, `uid` its own)."""
    fields = [view.graph.fields[i] for i in columns]
    if len({f.name for f in fields}) < len(fields):
        raise DataError(f"two fields of one name among {sorted(f.name for f in fields)} are read by one operator: name them apart")
    lengths = pad_lengths({f.name: f.declared for f in fields if f.declared is not None})
    taken = Block({f.name: columns[f.id] for f in fields}).take(index, pad_lengths=lengths)
    return {f.id: taken[f.name] for f in fields}
