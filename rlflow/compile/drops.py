"""Where columns are dropped: after their last read, and at a filter those rows that it does not keep.

born at its writer ──▶ read in this process, in that one ──▶ the last of all reads: freed
                 └──▶ a filter: the rows of dropped groups are freed there, whoever would have read them
"""

from __future__ import annotations

from ..language.diagnostic import Diagnostic
from .facts import Facts
from .ir import Graph, Node


def drops(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills last_by_worker, frees, filtered."""
    for node in graph.nodes:
        if node.is_record or node.id not in facts.needed:
            continue
        for field in reads(graph, facts, node):
            facts.last_by_worker.setdefault(field, {})[facts.site[node.id]] = node.id
        if node.rows == "filter":
            facts.filtered[node.id] = tuple(sorted({graph.origin(use.field).id for use in node.uses if use.field in facts.read}))
    freed: dict[int, list[int]] = {}
    for field, last in facts.last_by_worker.items():
        freed.setdefault(max(last.values()), []).append(field)
    facts.frees = {node: tuple(sorted(fields)) for node, fields in sorted(freed.items())}
    return []


def reads(graph: Graph, facts: Facts, node: Node) -> tuple[int, ...]:
    """Fields, where they are made, that a call is handed and reads, in the order of its parameters."""
    taken = facts.from_forward.get(node.id, {})
    return tuple(dict.fromkeys(graph.origin(use.field).id for use in node.uses if use.read and use.param.rpartition(".")[2] not in taken))
