"""What one pass found out, as text: `rlflow check FILE.py --dump infer`, for people who write passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from ..errors import UsageError
from .ir import Graph, Node
from .plan import Plan

TABLES: dict[str, tuple[str, ...]] = {
    "trace": (),
    "freeze": (),
    "own": ("failed",),
    "infer": ("specs", "rows", "bounds", "layout", "scored", "corrected"),
    "version": ("versions", "gaps"),
    "live": ("needed", "read", "from_forward", "dropped"),
    "order": (),
    "place": ("site", "ranks", "sleeps"),
    "drops": ("last_by_worker", "frees", "filtered"),
    "transport": ("edges", "fused", "state"),
}
NODES = ("failed", "needed", "from_forward", "dropped", "site", "frees", "filtered")
KEYS = {"gaps": "feedbacks", "ranks": "workers"} | dict.fromkeys(NODES, "nodes")  # of a table, where they are not fields


def dump(plan: Plan, name: str) -> str:
    """The tables of one pass, a line an entry. Raises UsageError for a pass that there is none of."""
    if name not in TABLES:
        raise UsageError(f"there is no pass `{name}`; the passes are {', '.join(TABLES)}")
    out = [f"{name}: {plan.timings_ms[name]:.2f} ms"]
    if name in GRAPH:
        out += [f"  {line}" for line in GRAPH[name](plan.graph)]
    for table in TABLES[name]:
        out.append(f"{table}:")
        out += [f"  {line}" for line in _table(plan, table, getattr(plan.facts, table))]
    return "\n".join(out)


def _table(plan: Plan, table: str, found: Mapping[Any, object] | Iterable[Any]) -> Iterator[str]:
    items: Iterable[Any] = sorted(cast(Any, found)) if isinstance(found, set | frozenset) else found
    if isinstance(found, Mapping):
        for key in items:
            yield f"{_key(plan, table, key)}  {_value(plan, table, found[key])}"
    else:
        for item in items:
            yield _key(plan, table, item) if isinstance(item, int) else str(item)


def _key(plan: Plan, table: str, key: int | str) -> str:
    """What the key of a table is the id of. (The letters of `bounds` are names already.)"""
    if isinstance(key, str):
        return key
    if table in KEYS:
        return f"{key} {getattr(plan.graph, KEYS[table])[key].name}"
    return f"{key} {plan.graph.writer(key).name}.{plan.graph.fields[key].name}"


def _value(plan: Plan, table: str, value: object) -> str:
    if table == "rows" and isinstance(value, int):
        rows = plan.facts.rowsets[value]
        return f"{value}: {rows.scope}, {rows.size} rows, {rows.how}; {', '.join(rows.holds)}"
    if table == "last_by_worker" and isinstance(value, dict):
        return ", ".join(f"{process}: {plan.graph.nodes[node].name}" for process, node in value.items())
    if table in ("frees", "filtered") and isinstance(value, tuple):
        return ", ".join(plan.graph.fields[field].name for field in value)
    return str(value)


def _calls(graph: Graph) -> Iterator[str]:
    """The trace: each call, where it is made, what it is given."""
    for node in graph.nodes:
        yield f"{node.id} {node.name}  {node.at.file}:{node.at.line}  ({', '.join(_given(graph, node))})"


def _given(graph: Graph, node: Node) -> Iterator[str]:
    for use in node.uses:
        yield f"{use.param}={graph.writer(use.field).name}.{graph.fields[use.field].name}"
    for weights in node.weights:
        yield f"{weights.param}={weights.name}@{weights.reading}"
    for name, value in node.params.items():
        yield f"{name}={value!r}"


def _declared(graph: Graph) -> Iterator[str]:
    """The graph: each field, its declaration, and what it mirrors."""
    for field in graph.fields:
        source = f" = {field.source} of {graph.writer(field.source).name}" if field.source is not None else f" {field.declared}"
        yield f"{field.id} {graph.nodes[field.node].name}.{field.name} {source}"


GRAPH: dict[str, Callable[[Graph], Iterator[str]]] = {"trace": _calls, "freeze": _declared}
