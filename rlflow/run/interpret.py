"""Calls an operator as the plain function that it is: columns in, columns out.

    blocks ── fetch ──▶ columns ── right-padded tensors, records, weight handles, config ──▶ fn(worker, **arguments)
                                                                                                    │
    block ◀── cut to the true lengths ◀── tensors ◀────────────────────────────────────────────────┘

An operator that is `ragged` is given the columns of its ragged fields as they lie, and may return columns: nothing is padded for it.

Nothing here knows what an operator means. Names of fields, shapes and dtypes come from the plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compile.ir import Field, Node, WeightsUse
from ..data.batch import Block
from ..data.column import Column
from ..data.pool.protocol import Pool
from ..data.shapes import Sizes, column_of, pad_lengths
from ..data.torch import as_array, to_torch
from ..errors import DataError
from ..language.config import from_config, resolve
from ..language.feedback import Handle
from ..language.loss import Objective
from ..language.operator import WHOSE, declaration_of
from ..language.worker import Worker
from ..measure import collected
from .graph import GraphView
from .letters import count_rows, sizes_of
from .messages import Source

Columns = Mapping[int, Column]  # by field id


@dataclass(frozen=True)
class _Prepared:
    """What every call of one node needs, looked up once. config: shared by all calls, so operators do not change theirs."""

    function: Callable[..., Any]
    worker: Worker | None
    config: dict[str, Any]
    alone: dict[str, int]  # parameter -> field
    records: dict[str, tuple[type, dict[str, int]]]  # parameter -> record class, and which field is which of its own
    outs: tuple[Field, ...]
    kept: frozenset[int]  # of `outs`, those that somebody reads or that are measured
    ragged: bool


class Interpreter:
    """Runs nodes of one plan in one process. workers: those of the plan, by id; an operator may be handed any of them."""

    def __init__(self, view: GraphView, workers: Mapping[int, Worker]) -> None:
        self.view, self.workers = view, workers
        self._prepared: dict[int, _Prepared] = {}
        self._converting = threading.Lock()  # hundreds of trajectories that convert at once pass the GIL around at every call into torch

    def run(
        self, node: Node, columns: Columns, *, version: int, timeline: int = 0, cuts: Sequence[Sequence[int]] = ()
    ) -> tuple[dict[int, Column], dict[str, float]]:
        """The columns that `node` makes and somebody reads or measures, by field id, and the numbers that it returned.

        version, timeline: of the weights that it reads. cuts: micro-batch sizes of each mini-batch, for a node that trains.
        A filter returns {"rows": how many it kept}, and no columns, or one: whose they are, where it may keep a part of a group.
        Raises DataError for results that are not as declared, and whatever the operator raises.
        """
        ready = self._ready(node)
        with self._converting:
            arguments = self._arguments(node, ready, columns, (version, timeline), cuts)
        if ready.worker is not None:
            ready.worker.measured = {}
        collected()  # what an earlier call that raised left behind
        result = ready.function(**arguments)
        numbers = result if isinstance(result, dict) else ready.worker.measured if ready.worker is not None else {}
        if node.rows == "filter":
            numbers = {"rows": _rows_of(result)}
        numbers = numbers | collected()
        with self._converting:
            made = self._columns(node, ready, columns, result)
        return made, {name: float(value) for name, value in numbers.items()}

    def _ready(self, node: Node) -> _Prepared:
        if node.id not in self._prepared:
            self._prepared[node.id] = self._prepare(node)
        return self._prepared[node.id]

    def _prepare(self, node: Node) -> _Prepared:
        assert node.operator is not None
        method, worker = node.operator.rpartition(".")[2], None if node.worker is None else self.workers[node.worker]
        records: dict[str, tuple[type, dict[str, int]]] = {param: (resolve(ref), {}) for param, ref in node.records.items()}
        for use in node.uses:
            param, dot, name = use.param.partition(".")
            if dot:
                records[param][1][name] = use.field
        outs = tuple(self.view.graph.fields[i] for i in node.outs)
        function = resolve(node.operator) if worker is None else getattr(worker, method)
        declared = declaration_of(function)
        return _Prepared(
            function=function,
            ragged=declared is not None and declared.ragged,
            worker=worker,
            config={name: from_config(value, self.workers) for name, value in node.params.items()},
            alone={use.param: use.field for use in node.uses if "." not in use.param},
            records=records,
            outs=outs,
            kept=frozenset(field.id for field in outs if field.id in self.view.kept or _is_measured(field)),
        )

    def _arguments(
        self, node: Node, ready: _Prepared, columns: Columns, of: tuple[int, int], cuts: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """of: version and timeline of the weights."""
        arguments = dict(ready.config)
        arguments |= {use.param: self._handle(use, *of) for use in node.weights}
        arguments |= {param: given(columns[field], ready.ragged) for param, field in ready.alone.items() if field in columns}
        for param, (record, names) in ready.records.items():
            fields = {name: columns[field] for name, field in names.items() if field in columns}
            arguments[param] = (
                self._objective(node, record, fields, cuts) if node.losses else make_record(record, Block(fields), ready.ragged)
            )
        return arguments

    def _handle(self, use: WeightsUse, version: int, timeline: int) -> Handle[Any]:
        max_lag = 0 if use.feedback is None else self.view.graph.feedbacks[use.feedback].max_lag
        return Handle(use.name, use.reading, version, self.workers.get(use.owner), max_lag, timeline)

    def _objective(self, node: Node, record: type, fields: dict[str, Column], cuts: Sequence[Sequence[int]]) -> Objective[Any, Any]:
        """Mini-batches of micro-batches, cut out of the rows of this rank in their order."""
        losses = tuple(from_config({"$data": loss.ref, **loss.options}, {}) for loss in node.losses if loss.active)
        ends = np.cumsum([size for mini in cuts for size in mini])
        block, starts = Block(fields), iter(np.concatenate([[0], ends[:-1]]))
        parts = tuple(tuple(make_record(record, block.take(np.arange(start := next(starts), start + n))) for n in mini) for mini in cuts)
        return Objective(rows=None, losses=losses, parts=parts)

    # --- results ------------------------------------------------------------------------------------------------------------------
    def _columns(self, node: Node, ready: _Prepared, columns: Columns, result: Any) -> dict[int, Column]:
        if node.result.kind == "field":
            made = [(ready.outs[0], result)]
        elif node.least_kept:
            made = [(field, _field_of(node, result, field.name)) for field in ready.outs if field.name == WHOSE]
            return {field.id: Column.scalars("i64", value.tolist()) for field, value in made}
        elif node.result.kind == "record":
            made = [(field, _field_of(node, result, field.name)) for field in ready.outs]
        else:
            return {}
        sizes = sizes_of(node, columns, made)
        return {field.id: _column(node, field, value, sizes) for field, value in made if field.id in ready.kept}


def _field_of(node: Node, result: Any, name: str) -> Any:
    """One field of the record that an operator returned."""
    if not hasattr(result, name):
        declared = (node.result.record or "").rpartition(":")[2]
        raise DataError(f"`{node.name}` returned a {type(result).__name__} without `{name}`: it is declared to return {declared}")
    return getattr(result, name)


def _column(node: Node, field: Field, value: Any, sizes: Sizes) -> Column:
    assert field.declared is not None
    if isinstance(value, list) and field.declared.dtype != "text":
        return Column.ragged(field.declared.dtype, [as_array(row)[1] for row in value])
    try:
        column = column_of(field.name, field.declared, value, sizes)
    except DataError as error:
        raise DataError(f"result of `{node.name}`: {error}") from error
    if field.declared.role is not None and field.declared.role.kind == "reward":
        _refuse_not_finite(node, field, column)
    return column


def _refuse_not_finite(node: Node, field: Field, column: Column) -> None:
    """Raises DataError: one reward that is no number makes the advantages of its whole group none."""
    wrong = np.flatnonzero(~np.isfinite(column.values).reshape(len(column.values), -1).all(axis=1))
    if len(wrong):
        first = int(wrong[0])
        row = first if column.offsets is None else int(np.searchsorted(column.offsets, first, side="right")) - 1
        raise DataError(f"result of `{node.name}`: `{field.name}` of row {row} of {column.rows} is {column.values[first]}")


def make_record(cls: type, block: Block, ragged: bool = False) -> Any:
    """An instance of a record class whose live fields are given as to an operator; what the plan dropped is not there."""
    record: Any = object.__new__(cls)
    for name, column in block.columns.items():
        object.__setattr__(record, name, given(column, ragged))
    return record


def given(column: Column, ragged: bool) -> Any:
    """A right-padded tensor, or a list of texts; to an operator that is ragged a column of tokens itself, read-only."""
    return column.read_only() if ragged and column.offsets is not None and column.dtype != "text" else to_torch(column)


def _is_measured(field: Field) -> bool:
    """`GraphView.measure` takes the mean of every f32 field."""
    return field.declared is not None and field.declared.dtype == "f32"


def _rows_of(record: Any) -> int:
    """How many rows a filter kept."""
    return count_rows(next(iter(vars(record).values())))


def block_of(columns: Columns) -> Block:
    """Columns under their field ids, as one block."""
    sizes = {column.rows for column in columns.values()}
    if len(sizes) > 1:
        raise DataError(f"an operator made columns of {sorted(sizes)} rows; all of a result have as many")
    return Block({str(i): column for i, column in columns.items()})


def fetch(view: GraphView, node: Node, source: Source, pool: Pool) -> dict[int, Column]:
    """The columns that `node` reads of one producer, by the field it knows them as; only its rows, pad rows made."""
    wanted = {use.field: view.graph.origin(use.field).id for use in view.handed[node.id]}
    blocks = [pool.view(key) for key in source.keys]
    here = [i for i in dict.fromkeys(wanted.values()) if str(i) in blocks[0].columns]
    columns = {i: Column.concat([block[str(i)] for block in blocks]) for i in here}
    if source.take is not None:
        columns = _take(view, columns, np.array(source.take, np.int64))
    return {field: columns[origin] for field, origin in wanted.items() if origin in columns}


def _take(view: GraphView, columns: dict[int, Column], index: Any) -> dict[int, Column]:
    """Rows by number; a pad row is made by the names of the fields (`is_pad` is True there, `uid` its own)."""
    fields = [view.graph.fields[i] for i in columns]
    if len({f.name for f in fields}) < len(fields):
        raise DataError(f"two fields of one name among {sorted(f.name for f in fields)} are read by one operator: name them apart")
    lengths = pad_lengths({f.name: f.declared for f in fields if f.declared is not None})
    taken = Block({f.name: columns[f.id] for f in fields}).take(index, pad_lengths=lengths)
    return {f.id: taken[f.name] for f in fields}
