"""From ids to names: the views of a graph and its facts."""

from __future__ import annotations

from .bytes import ColumnBytes
from .drops import reads
from .facts import Edge, Facts, Shift
from .ir import Feedback, Field, Graph, Node, Worker
from .peak import peaks
from .views import DroppedView, EdgeView, FeedbackView, FieldView, OperatorView, PeakView, Reason, ShiftView, StateView, Views, WorkerView

UNREAD = "no call reads it: it never leaves its writer"


def see(graph: Graph, facts: Facts) -> Views:
    """Everything that is known about where numbers are made, read, sent and freed."""
    fields = [f for f in graph.fields if f.source is None and f.id in facts.specs]
    readers: dict[int, list[Node]] = {field.id: [] for field in fields}
    for node in graph.nodes:
        if node.id in facts.needed and not node.is_record:
            for field in reads(graph, facts, node):
                readers[field].append(node)
    dies = {field: graph.nodes[node].name for node, columns in facts.frees.items() for field in columns}
    column_bytes = ColumnBytes()
    seen = [_field(graph, facts, field, readers[field.id], dies.get(field.id), column_bytes) for field in fields]
    return Views(
        pipeline=graph.name,
        module=graph.module,
        state=tuple(
            StateView(name=kept.name, owner=kept.owner, bytes=str(kept.bytes), in_checkpoint=kept.in_checkpoint) for kept in facts.state
        ),
        feedbacks=tuple(_feedback(graph, facts, feedback) for feedback in graph.feedbacks),
        fields=tuple(seen),
        operators=tuple(_operator(graph, facts, node) for node in graph.nodes if not node.is_record),
        edges=tuple(_edge(graph, edge) for edge in facts.edges),
        dropped=_dropped(graph, facts, seen),
        peaks=tuple(
            PeakView(process=process, call=call, bytes=str(size)) for process, calls in peaks(graph, facts).items() for call, size in calls
        ),
        workers=tuple(_worker(graph, facts, worker) for worker in graph.workers),
        shifts=tuple(_shift(graph, shift) for shift in facts.sleeps),
        fused=tuple(tuple(graph.nodes[node].name for node in nodes) for nodes in facts.fused),
    )


def _field(graph: Graph, facts: Facts, field: Field, readers: list[Node], dies: str | None, column_bytes: ColumnBytes) -> FieldView:
    spec, rows = facts.specs[field.id], facts.rows_of(field.id)
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
        dies=dies,
        version=", ".join(f"{name}@{reading}" for name, reading in facts.versions.get(field.id, ())) or None,
        layout=facts.layout[field.id],
        bytes=str(column_bytes(spec, field.name)),
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
        frees_rows=tuple(graph.fields[field].name for field in facts.filtered.get(node.id, ())),
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
        stale=feedback.stale,
        worst_gap=facts.gaps[feedback.id].worst,
        in_flight=facts.gaps[feedback.id].watermark,
        queue=facts.gaps[feedback.id].queue,
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
        replicas=worker.replicas,
        devices=graph.devices[worker.devices].name if worker.devices is not None else None,
        on=facts.ranks.get(worker.id, ()),
    )


def _shift(graph: Graph, shift: Shift) -> ShiftView:
    return ShiftView(
        before=graph.nodes[shift.before].name,
        worker=graph.workers[shift.worker].name,
        devices=graph.devices[shift.devices].name,
        part=shift.part,
        action=shift.action,
    )


def _dropped(graph: Graph, facts: Facts, fields: list[FieldView]) -> DroppedView:
    why = {graph.nodes[node].name: reason for node, reason in facts.dropped.items()}
    unread = [field for field in fields if field.dies is None]
    reasons = [Reason(name=name, writer=None, why=reason) for name, reason in why.items()]
    reasons += [Reason(name=f.name, writer=f.writer, why=why.get(f.writer, UNREAD)) for f in unread]
    return DroppedView(fields=tuple(dict.fromkeys(f.name for f in unread)), operators=tuple(why), reasons=tuple(reasons))


def _edge(graph: Graph, edge: Edge) -> EdgeView:
    return EdgeView(
        from_=edge.sender,
        to=edge.receiver,
        fields=tuple(graph.fields[field].name for field in edge.keyed),
        bytes=str(edge.step_bytes),
        row_bytes=str(edge.row_bytes),
        text=tuple(graph.fields[field].name for field in edge.text),
        inline=edge.inline,
        weights=tuple(graph.feedbacks[feedback].name for feedback in edge.weights),
    )
