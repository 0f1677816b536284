"""What lives across steps, all of it.

    worker       what its class declares: weights, optimizer, random state; an engine's replica and KV cache
    operator     what its declaration says: the position in a data set
    controller   rows that wait for a later batch, where a lag lets them; the version of weights that no worker counts

`in_checkpoint` says what a checkpoint holds today; the rest is made anew or begins anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .facts import Facts, Kept
from .ir import Dim, Graph, Node, State, Worker


def state(graph: Graph, facts: Facts) -> None:
    """Fills state."""
    drawn = _drawn(graph, facts)
    trained = {feedback.owner for feedback in graph.feedbacks}
    used = {node.worker for node in graph.nodes if node.id in facts.needed} | trained
    facts.state = (
        *(kept for worker in graph.workers if worker.id in used for kept in _of_worker(worker, worker.id in trained)),
        *(kept for node in graph.nodes if node.id in facts.needed for kept in _of_operator(node, drawn)),
        *_versions(graph),
    )


def _of_worker(worker: Worker, trains: bool) -> Iterator[Kept]:
    """A worker that does not train holds what it loaded, and no checkpoint holds it: it is loaded again."""
    for one in worker.state:
        if trains or not one.trained:
            size = _bytes(one, worker.name, worker.dp_size)
            yield Kept(name=one.name, owner=worker.name, bytes=size, in_checkpoint=trains and one.in_checkpoint)


def weights_bytes(graph: Graph, worker: int) -> Dim:
    """Of one version of the weights that a worker owns; a letter where it does not declare them."""
    owner = graph.workers[worker]
    found = next((one for one in owner.state if one.name == "weights"), None)
    return Dim.letter(f"weights_{_word(owner.name)}") if found is None else _bytes(found, owner.name, owner.dp_size)


def _of_operator(node: Node, drawn: set[int]) -> Iterator[Kept]:
    if not node.uses and node.id not in drawn:
        return  # a source that no batch is formed of is read whole each time: it has no position
    for one in node.state:
        yield Kept(name=one.name, owner=node.name, bytes=_bytes(one, node.name, 1), in_checkpoint=one.in_checkpoint)


def _drawn(graph: Graph, facts: Facts) -> set[int]:
    """Nodes whose rows come into a batch."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if node.id in found or (node.rows == "form" and node.id in facts.needed):
            found |= {node.id, *graph.makers(node)}
    return found


def _versions(graph: Graph) -> Iterator[Kept]:
    """One a feedback. Where the owner counts it beside its weights, it is in the list already."""
    for feedback in graph.feedbacks:
        if all(one.name != "version" for one in graph.workers[feedback.owner].state):
            yield Kept(name="version", owner=feedback.name, bytes=Dim.of(8), in_checkpoint=False)


def _bytes(one: State, owner: str, dp: int) -> Dim:
    """The letters of a declaration are its owner's own: N of `actor` is N_actor."""
    own = {letter: Dim.letter(f"{letter}_{_word(owner)}") for letter in one.bytes.letters}
    return one.bytes.put({**own, "DP": Dim.of(dp)})


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)
