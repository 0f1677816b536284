"""A plan as a person or a program asks about it, by name: what `rlflow explain --json` prints, and `plan.fields`, `plan.edges` ...

state       what lives across steps
feedbacks   every back edge: who owns, reads, trains and serves it, how far it lags
fields      every field once, where it is made: records and row operators hand on the same numbers
operators   every call: where it runs, what it reads, writes and frees
edges       what crosses from process to process
dropped     what the plan leaves out, and why
workers     processes with an engine, their ranks and devices
shifts      what goes to sleep and wakes where workers share devices
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..language.spec import DTYPES
from .drops import reads
from .facts import Facts
from .ir import Dim, Feedback, Field, Graph, Node, Worker
from .place import CONTROLLER

UNREAD = "no call reads it: it never leaves its writer"


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
    from_forward: dict[str, str]  # what it would read -> what of its own training forward stands in for it
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
    worst_gap: int  # versions that a trained row can be behind
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
    kind: str  # its class
    dp: int
    tp: int
    pp: int
    cp: int
    devices: str | None  # accelerators that it may share; None: CPU processes of its own
    on: tuple[int, ...]  # which of them, a number a rank


class ShiftView(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a worker that goes or comes, because workers share devices."""

    before: str  # operator
    worker: str
    devices: str
    part: str  # weights | optimizer | kv_cache
    action: str  # release | resume | offload | onload


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
    shifts: tuple[ShiftView, ...]  # of one step, in order


def views(graph: Graph, facts: Facts) -> Views:
    """Everything that is known about where numbers are made, read, sent and freed."""
    fields = [f for f in graph.fields if f.source is None and f.id in facts.specs]
    readers: dict[int, list[Node]] = {field.id: [] for field in fields}
    for node in graph.nodes:
        if node.id in facts.needed and not node.is_record:
            for field in reads(graph, facts, node):
                readers[field].append(node)
    seen = [_field(graph, facts, field, readers[field.id]) for field in fields]
    return Views(
        pipeline=graph.name,
        module=graph.module,
        feedbacks=tuple(_feedback(graph, facts, feedback) for feedback in graph.feedbacks),
        fields=tuple(seen),
        operators=tuple(_operator(graph, facts, node) for node in graph.nodes if not node.is_record),
        edges=tuple(_edges(graph, facts, fields, readers)),
        dropped=_dropped(graph, facts, seen),
        workers=tuple(_worker(graph, facts, worker) for worker in graph.workers),
        shifts=tuple(
            ShiftView(
                before=graph.nodes[shift.before].name,
                worker=graph.workers[shift.worker].name,
                devices=graph.devices[shift.devices].name,
                part=shift.part,
                action=shift.action,
            )
            for shift in facts.sleeps
        ),
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
    return OperatorView(
        name=node.name,
        operator=node.operator or "",
        worker=facts.site[node.id],
        per=node.per,
        rows=node.rows,
        reads=tuple(graph.fields[field].name for field in reads(graph, facts, node)),
        writes=tuple(graph.fields[out].name for out in node.outs if graph.fields[out].source is None),
        frees=tuple(graph.fields[field].name for field in facts.frees.get(node.id, ())),
        from_forward=facts.from_forward.get(node.id, {}),
        at=f"{node.at.file}:{node.at.line}",
        dropped=node.id not in facts.needed,
    )


def _feedback(graph: Graph, facts: Facts, feedback: Feedback) -> FeedbackView:
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
        worst_gap=facts.gaps[feedback.id].worst,
        readers=readers,
        served_by=tuple(graph.workers[w].name for w in sorted(served)),
    )


def _worker(graph: Graph, facts: Facts, worker: Worker) -> WorkerView:
    return WorkerView(
        name=worker.name,
        kind=worker.kind,
        dp=worker.dp_size,
        tp=worker.tp_size,
        pp=worker.pp_size,
        cp=worker.cp_size,
        devices=graph.devices[worker.devices].name if worker.devices is not None else None,
        on=facts.ranks.get(worker.id, ()),
    )


def _dropped(graph: Graph, facts: Facts, fields: list[FieldView]) -> DroppedView:
    why = {graph.nodes[node].name: reason for node, reason in facts.dropped.items()}
    unread = [field for field in fields if field.dies is None]
    reasons = [Reason(name=name, writer=None, why=reason) for name, reason in why.items()]
    reasons += [Reason(name=f.name, writer=f.writer, why=why.get(f.writer, UNREAD)) for f in unread]
    return DroppedView(fields=tuple(dict.fromkeys(f.name for f in unread)), operators=tuple(why), reasons=tuple(reasons))


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
