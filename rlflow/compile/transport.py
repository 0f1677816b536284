"""What crosses from process to process in one step, and what lives on after it.

    by key     columns that a call reads and another process made: they lie in the pool, and only keys are sent
    inline     what the messages of the controller hold themselves: keys, row numbers, ids, lengths (messages.py)
    weights    a new version, from its owner to an engine

A column crosses if it is read there: by an operator, or by a loss, itself or through records and row operators. Rows cross at their true
length, pad rows do not (they are made where they are read). Row plans are computed in the controller, from lengths and ids alone; those
that follow one another without a call between are one plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..language.diagnostic import Diagnostic
from ..language.spec import DTYPES
from .bytes import row_bytes
from .facts import Edge, Facts, Kept
from .ir import Dim, Graph, Node, Use
from .messages import Steps, messages
from .place import CONTROLLER
from .state import state, weights_bytes

Pair = tuple[str, str]  # sender, receiver


def transport(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills edges, fused, state."""
    steps = Steps(graph, facts)
    columns = _columns(graph, facts, steps)
    facts.edges = (*columns, *messages(graph, facts, steps, {n.id: handed(graph, facts, n) for n in graph.nodes}), *_weights(graph, facts))
    facts.fused = fused(graph, facts)
    state(graph, facts)
    facts.state += tuple(_waiting(graph, steps, columns))
    return []


def handed(graph: Graph, facts: Facts, node: Node) -> tuple[Use, ...]:
    """What a call is brought: the fields that it reads. A filter is given one more column of its record, to show which rows it kept."""
    live = [use for use in node.uses if use.field in facts.read and use.field in facts.specs]
    read = tuple(use for use in live if use.read)
    record = f"{node.result.param}."
    if node.rows != "filter" or any(use.param.startswith(record) for use in read):
        return read
    passed = [use for use in live if use.param.startswith(record)]
    return (*read, *sorted(passed, key=lambda use: _weight(facts, use))[:1])


def _weight(facts: Facts, use: Use) -> tuple[int, int]:
    spec = facts.specs[use.field]
    return len(spec.shape) + (spec.dtype == "text"), DTYPES[spec.dtype].size or 0


# --- columns ------------------------------------------------------------------------------------------------------------------------
def _columns(graph: Graph, facts: Facts, steps: Steps) -> list[Edge]:
    """Columns by (process that makes them, process that reads them), each once. The controller is sent none."""
    crossing: dict[Pair, dict[int, Dim]] = {}
    for node in graph.nodes:
        if node.id not in facts.needed or node.is_record or facts.site[node.id] == CONTROLLER:
            continue
        for use in handed(graph, facts, node):
            origin = graph.origin(use.field)
            pair = facts.site[origin.node], _receiver(graph, facts, node, graph.nodes[origin.node])
            if pair[0] != pair[1]:
                crossing.setdefault(pair, {}).setdefault(origin.id, steps.rows(facts.rows[use.field]))
    return [_edge(facts, pair, rows) for pair, rows in crossing.items()]


def _edge(facts: Facts, pair: Pair, rows: dict[int, Dim]) -> Edge:
    sizes = {field: row_bytes(facts.specs[field]) for field in rows}
    numbers = {field: size for field, size in sizes.items() if size is not None}
    return Edge(
        sender=pair[0],
        receiver=pair[1],
        keyed=tuple(rows),
        text=tuple(field for field, size in sizes.items() if size is None),
        row_bytes=sum(numbers.values(), Dim.of(0)),
        step_bytes=sum((size * rows[field] for field, size in numbers.items()), Dim.of(0)),
    )


def _receiver(graph: Graph, facts: Facts, reader: Node, writer: Node) -> str:
    """The process of a reader. Ranks of one worker are processes too: a row crosses if another of them needs it than made it."""
    site = facts.site[reader.id]
    if site != facts.site[writer.id] or reader.worker is None or graph.workers[reader.worker].dp_size == 1:
        return site
    return site if _spread(facts, reader) == _spread(facts, writer) else f"{site} (other ranks)"


def _spread(facts: Facts, node: Node) -> tuple[str, int | None]:
    """Which rank works on which row: all on their share in order, or the first on all, or each on its shard."""
    rows = next((facts.rows_of(use.field) for use in node.uses if use.field in facts.rows), None)
    if rows is not None and rows.scope in ("shard", "micro"):
        return "shard", rows.id
    return ("share", rows.id if rows else None) if node.per == "row" else ("first", None)


# --- weights, row plans, rows that wait ------------------------------------------------------------------------------------------------
def _weights(graph: Graph, facts: Facts) -> Iterator[Edge]:
    """From owner to engine, to each of its replicas; a worker that samples with what it owns sends nothing."""
    for node in graph.nodes:
        if node.id in facts.needed and node.fills is not None:
            for use in node.weights:
                if use.feedback is not None and node.fills != use.owner:
                    owner, engine = graph.workers[use.owner], graph.workers[node.fills]
                    size = weights_bytes(graph, use.owner) * engine.replicas
                    yield Edge(sender=owner.name, receiver=engine.name, inline=("version",), weights=(use.feedback,), step_bytes=size)


def fused(graph: Graph, facts: Facts) -> tuple[tuple[int, ...], ...]:
    """Row operators of which the controller makes one plan: each acts on the rows that another of them made."""
    plans: dict[int, list[int]] = {}  # first node → all of the plan
    first: dict[int, int] = {}
    for node in graph.nodes:
        if node.index is None or node.id not in facts.needed:
            continue
        before = next((rows.made_by for use in node.uses if (rows := facts.rows_of(use.field))), None)
        first[node.id] = first.get(before, node.id) if before is not None else node.id
        plans.setdefault(first[node.id], []).append(node.id)
    return tuple(map(tuple, plans.values()))


def _waiting(graph: Graph, steps: Steps, columns: list[Edge]) -> Iterator[Kept]:
    """Rows of later batches, where a lag lets the engine sample ahead: at the end of a step as many batches as the lag."""
    for engine, max_lag in steps.ahead.items():
        sent = {field: edge for edge in columns if edge.sender == engine for field in edge.keyed}
        each = sum((size for field in sent if (size := row_bytes(steps.facts.specs[field])) is not None), Dim.of(0))
        yield Kept(name="waiting rows", owner="controller", bytes=each * steps.sampled[engine] * max_lag, in_checkpoint=False)
