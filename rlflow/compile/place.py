"""Which process runs a call.

<engine>.rollout   calls on the stream: data set, dispatch, rollout; rewards and filters of rows that are not yet in a batch
<worker>           a method of a worker; a sync runs on the worker that owns the weights
controller         row plans: operators with index=, and form_batch. Keys and lengths only
host               everything else on the batch: rewards, estimators
"""

from __future__ import annotations

from ..language.diagnostic import Diagnostic
from .facts import Facts
from .ir import Graph, Node

CONTROLLER, HOST = "controller", "host"


def place(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills site, for every call; a record is put together wherever it is read, so it has none."""
    rollouts = {
        node.id: f"{graph.workers[node.worker].name}.rollout" for node in graph.nodes if node.worker is not None and _is_rollout(node)
    }
    for node in graph.nodes:
        if not node.is_record:
            facts.site[node.id] = rollouts.get(node.id) or _site(graph, facts, node, rollouts)
    return []


def _is_rollout(node: Node) -> bool:
    """It asks an engine that others fill: the worker beside that engine runs it."""
    return any(w.reading == "served" for w in node.weights)


def _site(graph: Graph, facts: Facts, node: Node, rollouts: dict[int, str]) -> str:
    if node.worker is not None:
        return graph.workers[node.worker].name
    if node.serves is not None and node.weights:
        return graph.workers[node.weights[0].owner].name
    if node.index is not None or node.rows == "form":
        return CONTROLLER
    if _scope(facts, node) == "stream" and rollouts:
        return _stream_site(graph, node, rollouts)
    return HOST


def _scope(facts: Facts, node: Node) -> str | None:
    fields = [*(use.field for use in node.uses), *node.outs]
    return next((rows.scope for field in fields if (rows := facts.rows_of(field))), None)


def _stream_site(graph: Graph, node: Node, rollouts: dict[int, str]) -> str:
    """That of the rollout that it feeds, or that feeds it."""
    below, above = _reachable(graph, node.id, forward=True), _reachable(graph, node.id, forward=False)
    found = [site for at, site in rollouts.items() if at in below] or [site for at, site in rollouts.items() if at in above]
    return found[0] if found else next(iter(rollouts.values()))


def _reachable(graph: Graph, start: int, *, forward: bool) -> set[int]:
    """Nodes that depend on `start`, or those that it depends on. Ids are in the order of the trace."""
    found = {start}
    for node in graph.nodes if forward else reversed(graph.nodes):
        makers = {graph.fields[use.field].node for use in node.uses}
        if forward and makers & found:
            found.add(node.id)
        elif not forward and node.id in found:
            found |= makers
    return found
