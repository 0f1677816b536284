"""The field map of a plan as data: what `rlflow explain --json` prints and explain.py writes as text.

calls     every call, where it runs, and whether the step needs it
fields    every field once, where it is made: records and row operators hand on the same numbers
weights   every feedback: who owns it, reads it, trains it, serves it
hops      what crosses to another process
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..compile.ir import Dim, Field, Graph, Node
from ..compile.place import CONTROLLER
from ..compile.plan import Plan
from ..language.spec import DTYPES


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    operator: str
    site: str  # process
    per: str
    rows: str
    needed: bool  # False: dropped, the step does not depend on it
    at: str  # file:line


class FieldRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    writer: str
    dtype: str
    shape: tuple[str, ...]
    role: str | None
    scope: str  # stream | batch | shard | micro, where it is made
    versions: tuple[str, ...]  # feedback@reading
    readers: tuple[str, ...]  # in the order in which they run
    dies_after: str | None  # the last reader; None: nobody reads it, it never leaves its writer


class WeightsRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    owner: str
    init: str
    max_lag: int
    readers: dict[str, tuple[str, ...]]  # reading -> calls
    served_by: tuple[str, ...]


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    sender: str
    receiver: str
    fields: tuple[str, ...]
    bytes_a_row: str  # a polynomial in the sizes of the graph; text not counted
    text: tuple[str, ...]  # fields of text, as long as the text is


class FieldMap(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    module: str
    calls: tuple[CallRow, ...]
    fields: tuple[FieldRow, ...]
    weights: tuple[WeightsRow, ...]
    hops: tuple[Hop, ...]
    ranks: dict[str, int]  # worker -> data-parallel ranks


def field_map(plan: Plan) -> FieldMap:
    """Everything that is known about where numbers are made, read, sent and freed."""
    graph = plan.graph
    own = [f for f in graph.fields if f.source is None]
    return FieldMap(
        name=graph.name,
        module=graph.module,
        calls=tuple(_call(plan, node) for node in graph.nodes if not node.is_record),
        fields=tuple(_field(plan, field) for field in own if field.id in plan.facts.specs),
        weights=tuple(_weights(graph)),
        hops=tuple(_hops(plan)),
        ranks={worker.name: worker.dp_size for worker in graph.workers},
    )


def _call(plan: Plan, node: Node) -> CallRow:
    return CallRow(
        name=node.name,
        operator=node.operator or "",
        site=plan.facts.site[node.id],
        per=node.per,
        rows=node.rows,
        needed=node.id in plan.facts.needed,
        at=f"{node.at.file}:{node.at.line}",
    )


def readers_of(plan: Plan, field: Field) -> list[Node]:
    """The needed calls that read a field, itself or through records and row operators."""
    return [
        node
        for node in plan.graph.nodes
        if node.id in plan.facts.needed
        and any(use.read and not node.is_record and plan.graph.origin(use.field) is field for use in node.uses)
    ]


def _field(plan: Plan, field: Field) -> FieldRow:
    graph, facts = plan.graph, plan.facts
    spec, rows, last = facts.specs[field.id], facts.rows_of(field.id), facts.last_read.get(field.id)
    return FieldRow(
        name=field.name,
        writer=graph.nodes[field.node].name,
        dtype=spec.dtype,
        shape=tuple(map(str, spec.shape)),
        role=str(spec.role) if spec.role else None,
        scope=rows.scope if rows else "",
        versions=tuple(f"{name}@{reading}" for name, reading in facts.versions.get(field.id, ())),
        readers=tuple(node.name for node in readers_of(plan, field)),
        dies_after=graph.nodes[last].name if last is not None else None,
    )


def _weights(graph: Graph) -> Iterator[WeightsRow]:
    for feedback in graph.feedbacks:
        readers: dict[str, tuple[str, ...]] = {}
        for node in graph.nodes:
            for use in node.weights:
                if use.feedback == feedback.id:
                    readers[use.reading] = (*readers.get(use.reading, ()), node.name)
        served = {w for close in feedback.closes for w in close.served_by}
        yield WeightsRow(
            name=feedback.name,
            owner=graph.workers[feedback.owner].name,
            init=graph.nodes[feedback.init].name,
            max_lag=feedback.max_lag,
            readers=readers,
            served_by=tuple(graph.workers[w].name for w in sorted(served)),
        )


def _hops(plan: Plan) -> Iterator[Hop]:
    """Fields by (process that makes them, process that reads them). The controller is sent no field."""
    crossing: dict[tuple[str, str], list[Field]] = {}
    for field in plan.graph.fields:
        if field.source is None and field.id in plan.facts.specs:
            sender = plan.facts.site[field.node]
            for receiver in dict.fromkeys(_receiver(plan, node, sender) for node in readers_of(plan, field)):
                if receiver not in (sender, CONTROLLER):
                    crossing.setdefault((sender, receiver), []).append(field)
    for (sender, receiver), fields in crossing.items():
        size, text = Dim.of(0), list[str]()
        for field in fields:
            spec = plan.facts.specs[field.id]
            width = DTYPES[spec.dtype].size
            if width is None:
                text.append(field.name)
            else:
                size += _elements(spec.shape[1:]) * width
        yield Hop(sender=sender, receiver=receiver, fields=tuple(f.name for f in fields), bytes_a_row=str(size), text=tuple(text))


def _receiver(plan: Plan, node: Node, sender: str) -> str:
    """The process of a reader. After a shard the rows of a data-parallel worker are on other ranks than those that scored them."""
    site = plan.facts.site[node.id]
    ranks = plan.graph.workers[node.worker].dp_size if node.worker is not None else 1
    moved = ranks > 1 and any(rows.scope in ("shard", "micro") for use in node.uses if (rows := plan.facts.rows_of(use.field)))
    return f"{site} (other ranks)" if site == sender and moved else site


def _elements(shape: tuple[Dim, ...]) -> Dim:
    count = Dim.of(1)
    for dim in shape:
        count *= dim
    return count
