"""A plan as a person or a program asks about it, by name: what `rlflow explain --json` prints, and `plan.fields`, `plan.edges` ...

state       what lives across steps
feedbacks   every back edge: who owns, reads, trains and serves it, how far it lags
fields      every field once, where it is made: records and row operators hand on the same numbers
operators   every call: where it runs, what it reads, writes and frees
edges       what crosses from process to process
dropped     what the plan leaves out, and why
workers     processes with an engine, and their ranks
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..language.spec import DTYPES
from .facts import Facts
from .ir import Dim, Feedback, Field, Graph, Node
from .place import CONTROLLER


class FieldView(msgspec.Struct, frozen=True, kw_only=True):
    """One field, where it is made."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    scope: str  # stream | batch | shard | micro, where it is made
    role: str | None
    writer: str
    readers: tuple[str, ...]  # in the order in which they run
    born: str  # the operator after which it exists
    dies: str | None  # the operator that reads it last; None: nobody does, it never leaves its writer
    version: str | None  # the readings of feedbacks that it depends on, as `policy@served`


class OperatorView(msgspec.Struct, frozen=True, kw_only=True):
    """One call."""

    name: str
    operator: str  # module:function
    worker: str  # the process that runs it
    per: str
    rows: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    frees: tuple[str, ...]
    at: str  # file:line
    dropped: bool


class EdgeView(msgspec.Struct, frozen=True, kw_only=True):
    """What crosses from one process to another."""

    from_: str = msgspec.field(name="from")
    to: str
    fields: tuple[str, ...]
    bytes: str  # a row, a polynomial in the sizes of the graph; text not counted
    text: tuple[str, ...]  # those of the fields that are text, as long as the text is


class FeedbackView(msgspec.Struct, frozen=True, kw_only=True):
    """One back edge."""

    name: str
    owner: str
    init: str  # the call that loads version 0
    max_lag: int
    readers: dict[str, tuple[str, ...]]  # reading -> calls
    served_by: tuple[str, ...]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is left out."""

    name: str
    writer: str | None  # of a field; None for an operator
    why: str


class DroppedView(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan leaves out."""

    fields: tuple[str, ...]
    operators: tuple[str, ...]
    reasons: tuple[Reason, ...]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A process with an engine, once a rank."""

    name: str
    dp: int


class Views(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    pipeline: str
    module: str
    feedbacks: tuple[FeedbackView, ...]
    fields: tuple[FieldView, ...]
    operators: tuple[OperatorView, ...]
    edges: tuple[EdgeView, ...]
    dropped: DroppedView
    workers: tuple[WorkerView, ...]


def views(graph: Graph, facts: Facts) -> Views:
    """Everything that is known about where numbers are made, read, sent and freed."""
    fields = [f for f in graph.fields if f.source is None and f.id in facts.specs]
    readers: dict[int, list[Node]] = {field.id: [] for field in fields}
    for node in graph.nodes:
        if node.id in facts.needed and not node.is_record:
            for field in dict.fromkeys(graph.origin(use.field).id for use in node.uses if use.read):
                readers[field].append(node)
    seen = [_field(graph, facts, field, readers[field.id]) for field in fields]
    return Views(
        pipeline=graph.name,
        module=graph.module,
        feedbacks=tuple(_feedback(graph, feedback) for feedback in graph.feedbacks),
        fields=tuple(seen),
        operators=tuple(_operator(graph, facts, node) for node in graph.nodes if not node.is_record),
        edges=tuple(_edges(graph, facts, fields, readers)),
        dropped=_dropped(graph, facts, seen),
        workers=tuple(WorkerView(name=worker.name, dp=worker.dp_size) for worker in graph.workers),
    )


def _field(graph: Graph, facts: Facts, field: Field, readers: list[Node]) -> FieldView:
    spec, rows, last = facts.specs[field.id], facts.rows_of(field.id), facts.last_read.get(field.id)
    writer = graph.nodes[field.node].name
    return FieldView(
        name=field.name,
        dtype=spec.dtype,
        shape=tuple(map(str, spec.shape)),
        scope=rows.scope if rows else "",
        role=str(spec.role) if spec.role else None,
        writer=writer,
        readers=tuple(node.name for node in readers),
        born=writer,
        dies=graph.nodes[last].name if last is not None else None,
        version=", ".join(f"{name}@{reading}" for name, reading in facts.versions.get(field.id, ())) or None,
    )


def _operator(graph: Graph, facts: Facts, node: Node) -> OperatorView:
    origins = dict.fromkeys(graph.origin(use.field).id for use in node.uses if use.read)
    freed = [f.name for f in graph.fields if f.source is None and facts.last_read.get(f.id) == node.id]
    return OperatorView(
        name=node.name,
        operator=node.operator or "",
        worker=facts.site[node.id],
        per=node.per,
        rows=node.rows,
        reads=tuple(graph.fields[field].name for field in origins),
        writes=tuple(graph.fields[out].name for out in node.outs if graph.fields[out].source is None),
        frees=tuple(freed),
        at=f"{node.at.file}:{node.at.line}",
        dropped=node.id not in facts.needed,
    )


def _feedback(graph: Graph, feedback: Feedback) -> FeedbackView:
    readers: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        for use in node.weights:
            if use.feedback == feedback.id:
                readers[use.reading] = (*readers.get(use.reading, ()), node.name)
    served = {w for close in feedback.closes for w in close.served_by}
    return FeedbackView(
        name=feedback.name,
        owner=graph.workers[feedback.owner].name,
        init=graph.nodes[feedback.init].name,
        max_lag=feedback.max_lag,
        readers=readers,
        served_by=tuple(graph.workers[w].name for w in sorted(served)),
    )


def _dropped(graph: Graph, facts: Facts, fields: list[FieldView]) -> DroppedView:
    operators = [node.name for node in graph.nodes if not node.is_record and node.id not in facts.needed]
    unread = [field for field in fields if field.dies is None]
    reasons = [Reason(name=name, writer=None, why="nothing that the step leaves behind depends on it") for name in operators]
    reasons += [Reason(name=f.name, writer=f.writer, why="nobody reads it: it never leaves its writer") for f in unread]
    return DroppedView(fields=tuple(dict.fromkeys(f.name for f in unread)), operators=tuple(operators), reasons=tuple(reasons))


def _edges(graph: Graph, facts: Facts, fields: list[Field], readers: dict[int, list[Node]]) -> Iterator[EdgeView]:
    """Fields by (process that makes them, process that reads them). The controller is sent no field."""
    crossing: dict[tuple[str, str], list[Field]] = {}
    for field in fields:
        sender = facts.site[field.node]
        for receiver in dict.fromkeys(_receiver(graph, facts, node, sender) for node in readers[field.id]):
            if receiver not in (sender, CONTROLLER):
                crossing.setdefault((sender, receiver), []).append(field)
    for (sender, receiver), sent in crossing.items():
        size, text = bytes_a_row(facts, sent)
        yield EdgeView(from_=sender, to=receiver, fields=tuple(f.name for f in sent), bytes=str(size), text=text)


def bytes_a_row(facts: Facts, fields: list[Field]) -> tuple[Dim, tuple[str, ...]]:
    """What a row of these columns takes, and those that are text, whose length only the run knows."""
    size, text = Dim.of(0), list[str]()
    for field in fields:
        spec = facts.specs[field.id]
        width = DTYPES[spec.dtype].size
        if width is None:
            text.append(field.name)
        else:
            size += _elements(spec.shape[1:]) * width
    return size, tuple(text)


def _receiver(graph: Graph, facts: Facts, node: Node, sender: str) -> str:
    """The process of a reader. After a shard the rows of a data-parallel worker are on other ranks than those that scored them."""
    site = facts.site[node.id]
    ranks = graph.workers[node.worker].dp_size if node.worker is not None else 1
    moved = ranks > 1 and any(rows.scope in ("shard", "micro") for use in node.uses if (rows := facts.rows_of(use.field)))
    return f"{site} (other ranks)" if site == sender and moved else site


def _elements(shape: tuple[Dim, ...]) -> Dim:
    count = Dim.of(1)
    for dim in shape:
        count *= dim
    return count
