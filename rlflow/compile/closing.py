"""Every feedback is closed once, with its own next version, and a sync has brought that to everyone who serves it."""

from __future__ import annotations

from collections.abc import Iterator

from ..language.diagnostic import Diagnostic, Label
from ..language.source import argument_text, text
from .ir import Feedback, Graph, Node, WeightsUse

SHORT = 90  # characters of a call that a help line repeats


def closing(graph: Graph, feedback: Feedback) -> Iterator[Diagnostic]:
    """What is wrong with the end of a loop."""
    if not feedback.closes:
        yield _never(graph, feedback)
        return
    first, *more = feedback.closes
    for again in more:
        yield Diagnostic(
            code="RLF201",
            message=f"feedback `{feedback.name}` is closed twice",
            where=again.at,
            label="closed again",
            related=(Label(first.at, "closed here"),),
            help="close it once, with what the last call of the step returns",
        )
    if first.reading != "next":
        yield Diagnostic(
            code="RLF204",
            message=f"feedback `{feedback.name}` is closed with {first.reading} of `{first.name}`, not with a next version",
            where=first.at,
            help=_end(graph, feedback),
        )
    elif _refused(graph, first):
        return
    elif first.feedback != feedback.id:
        yield Diagnostic(
            code="RLF302",
            message=f"feedback `{feedback.name}` is closed with `{first.name}`, the next version of another",
            where=first.at,
            label="closed here",
            related=(Label(feedback.at, "opened here"),),
            help=f"close it with what the call that takes `{feedback.name}.move` returns",
        )
    elif not _moved(graph, feedback, first):
        yield _stays(graph, feedback, first)
    else:
        yield from _unserved(graph, feedback, first)


def _stays(graph: Graph, feedback: Feedback, closed: WeightsUse) -> Diagnostic:
    maker = graph.nodes[closed.writer] if closed.writer is not None else None
    made = f"what `{maker.title}` makes of {maker.weights[0].reading}" if maker and maker.weights else "weights that nothing trained"
    return Diagnostic(
        code="RLF204",
        message=f"feedback `{feedback.name}` is closed with {made}, its version stays k",
        where=closed.at,
        label="no call on the way takes `.move`",
        related=(Label(feedback.at, "opened here"),),
        notes=("a step makes version k + 1 by moving k; a copy of k under the next number makes old log-probs look new",),
        help=_end(graph, feedback),
    )


def _moved(graph: Graph, feedback: Feedback, weights: WeightsUse) -> bool:
    """A call took version k of this feedback on the way to these weights."""
    if weights.reading == "move":
        return weights.feedback == feedback.id
    return weights.writer is not None and any(_moved(graph, feedback, given) for given in graph.nodes[weights.writer].weights)


def _refused(graph: Graph, weights: WeightsUse) -> bool:
    """A call that was refused made it, at the start or on the way: whose version it is cannot be told."""
    if weights.writer is None:
        return False
    maker = graph.nodes[weights.writer]
    return maker.failed or any(not given.fits or _refused(graph, given) for given in maker.weights)


# --- never closed -----------------------------------------------------------------------------------------------------------------
def _never(graph: Graph, feedback: Feedback) -> Diagnostic:
    return Diagnostic(
        code="RLF301",
        message=f"feedback `{feedback.name}` is never closed",
        where=feedback.at,
        label="opened here",
        notes=("every step would start again from version 0",),
        help=_end(graph, feedback),
    )


def _end(graph: Graph, feedback: Feedback) -> str:
    """The line that closes the loop, of the calls that are there."""
    train = next((node for node, _ in graph.uses_of(feedback, "move")), None)
    if train is None:
        return f"train it with a call that takes `{feedback.name}.move`, and close it with what that returns"
    last = train
    for node in graph.nodes:
        if any(w.writer == last.id for w in node.weights) and node.result.kind == "weights":
            last = node
    given = _written(last)
    for worker in _serving(graph, feedback):
        if last is train:
            given = f"sync({given}, {graph.workers[worker].name})"
    return f"end the pipeline with `{feedback.name}.close({given})`"


def _written(node: Node) -> str:
    """The name that a call's result was given; else the call itself."""
    written = node.target or text(node.at)
    return written if len(written) <= SHORT else f"{node.title}(...)"


def _serving(graph: Graph, feedback: Feedback) -> list[int]:
    """Workers that a sync must reach, in the order of their first call. (An owner that could read its own is refused for that.)"""
    calls = graph.uses_of(feedback, "served")
    every = (n.worker for n, weights in calls if not (weights.wanted == "any" and n.worker == feedback.owner))
    return list(dict.fromkeys(worker for worker in every if worker is not None))


# --- closed, but not served -----------------------------------------------------------------------------------------------------
def _unserved(graph: Graph, feedback: Feedback, closed: WeightsUse) -> Iterator[Diagnostic]:
    """Once a worker, with all calls that read the replica."""
    for worker in _serving(graph, feedback):
        if worker in closed.served_by:
            continue
        name = graph.workers[worker].name
        first, *more = (weights for node, weights in graph.uses_of(feedback, "served") if node.worker == worker)
        given = argument_text(closed.at, 0) or argument_text(closed.at, "new") or "..."
        yield Diagnostic(
            code="RLF304",
            message=f"nothing brings new versions of `{feedback.name}` to `{name}`",
            where=first.at,
            label=f"`{name}` would serve version 0 for ever",
            related=(*(Label(other.at, "and here") for other in more), Label(closed.at, "closed without a sync to it")),
            help=f"`{feedback.name}.close(sync({given if len(given) <= SHORT else '...'}, {name}))`",
        )
