"""Which process runs a call, and which devices a worker's ranks are on.

<engine>.rollout   calls on single rows of the stream: data set, dispatch, rollout; rewards of rows that are not yet in a batch
<worker>           a method of a worker; a sync runs on the worker that owns the weights
controller         row plans: operators with index=, and form_batch. Keys and lengths only
host               everything else: rewards and estimators of the batch, filters and estimators of whole groups before it
"""

from __future__ import annotations

from ..language.diagnostic import Diagnostic
from .colocate import colocate
from .facts import Facts
from .ir import Graph, Node
from .ranks import ranks

CONTROLLER, HOST = "controller", "host"


def place(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills site, for every call (a record is put together wherever it is read, so it has none), ranks and sleeps."""
    rollouts = {
        node.id: f"{graph.workers[node.worker].name}.rollout" for node in graph.nodes if node.worker is not None and is_rollout(node)
    }
    feeds = _nearest(graph, rollouts)
    for node in graph.nodes:
        if not node.is_record:
            facts.site[node.id] = rollouts.get(node.id) or _site(graph, facts, node, feeds)
    return [*ranks(graph, facts), *colocate(graph, facts)]


def is_rollout(node: Node) -> bool:
    """It asks an engine that others fill: the worker beside that engine runs it."""
    return any(w.reading == "served" for w in node.weights)


def _site(graph: Graph, facts: Facts, node: Node, feeds: dict[int, str]) -> str:
    if node.worker is not None:
        return graph.workers[node.worker].name
    if node.serves is not None and node.weights:
        return graph.workers[node.weights[0].owner].name
    if node.index is not None or node.rows == "form":
        return CONTROLLER
    if node.per == "row" and facts.scope(node) == "stream" and node.id in feeds:
        return feeds[node.id]
    return HOST


def _nearest(graph: Graph, rollouts: dict[int, str]) -> dict[int, str]:
    """Of each node: the process of the first rollout that it feeds, else of the first that feeds it, else of the first of all."""
    if not rollouts:
        return {}
    below: dict[int, int] = {at: at for at in rollouts}
    above = dict(below)
    for node in graph.nodes:
        for maker in graph.makers(node):
            if maker in above:
                above[node.id] = min(above[maker], above.get(node.id, above[maker]))
    for node in reversed(graph.nodes):
        if node.id in below:
            for maker in graph.makers(node):
                below[maker] = min(below[node.id], below.get(maker, below[node.id]))
    first = min(rollouts)
    return {node.id: rollouts[below.get(node.id, above.get(node.id, first))] for node in graph.nodes}
