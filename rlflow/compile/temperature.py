"""Log-probs that meet are of one temperature, and what is trained is what was sampled.

    engine, T = 0.7 ── samples ──▶ rows ──▶ actor, T = 1.0: old and new log-probs

The ratio of the actor's log-probs is then 1 at the start, so nothing looks wrong; but it is the policy at 1.0 that is pushed
towards what the policy at 0.7 said.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..language.diagnostic import Diagnostic, Label
from .facts import Facts
from .ir import Feedback, Graph, Node, Use


def one_temperature(graph: Graph, facts: Facts, node: Node, uses: list[Use]) -> dict[str, Diagnostic]:
    """Log-probs that meet in a call must be of one temperature; in a training call it is that of its worker."""
    scored = [(use, facts.temperature[use.field]) for use in uses if use.field in facts.temperature]
    found = {use.param: _meet(graph, node, scored[0], (use, at)) for use, at in scored[1:] if at != scored[0][1]}
    if not found and node.losses and node.worker is not None:
        own = graph.workers[node.worker].temperature
        found = {use.param: _foreign(graph, node, node.worker, use, at) for use, at in scored if at != own}
    return found


def _meet(graph: Graph, node: Node, one: tuple[Use, float], two: tuple[Use, float]) -> Diagnostic:
    (first, other), (use, at) = one, two
    makers = [graph.nodes[graph.origin(u.field).node] for u in (first, use)]
    names = " and ".join(f"`{graph.workers[n.worker].name}`" for n in makers if n.worker is not None)
    name, name_first = (graph.fields[u.field].name for u in (use, first))
    return Diagnostic(
        code="RLF123",
        message=f"log-probs at temperature {at} and {other} meet in `{node.title}`",
        where=use.at,
        label=f"`{name}` is at temperature {at}",
        related=(Label(first.at, f"`{name_first}` is at temperature {other}"),),
        notes=("a ratio of the two differs from 1 even when the weights are equal",),
        help=f"give {names} the same temperature",
    )


def _foreign(graph: Graph, node: Node, worker: int, use: Use, at: float) -> Diagnostic:
    trainer, maker = graph.workers[worker], graph.nodes[graph.origin(use.field).node]
    names = " and ".join(f"`{graph.workers[w].name}`" for w in (worker, maker.worker) if w is not None)
    name = graph.fields[use.field].name
    return Diagnostic(
        code="RLF123",
        message=f"`{node.title}` computes log-probs at temperature {trainer.temperature} and reads `{name}` at {at}",
        where=use.at,
        label=f"`{name}` is at temperature {at}",
        related=(Label(maker.at, "made here"), Label(trainer.at, f"`{trainer.name}` is at temperature {trainer.temperature}")),
        notes=("a difference of the two is not 0 even when the weights are equal",),
        help=f"give {names} the same temperature",
    )


def sampled_as_trained(graph: Graph) -> list[Diagnostic]:
    """An engine that samples rows from a feedback does so at the temperature at which the feedback's owner trains."""
    return [found for feedback in graph.feedbacks for found in _of(graph, feedback)]


def _of(graph: Graph, feedback: Feedback) -> Iterator[Diagnostic]:
    owner, told = graph.workers[feedback.owner], {feedback.owner}
    for node in graph.nodes:
        samples = bool(node.outs) and any(w.feedback == feedback.id and w.reading == "served" for w in node.weights)
        if not samples or node.worker is None or node.worker in told:
            continue
        told.add(node.worker)
        engine = graph.workers[node.worker]
        if engine.temperature != owner.temperature:
            yield Diagnostic(
                code="RLF123",
                message=f"`{engine.name}` samples `{feedback.name}` at temperature {engine.temperature}, "
                f"`{owner.name}` trains it at {owner.temperature}",
                where=node.at,
                label=f"sampled at temperature {engine.temperature}",
                related=(
                    Label(engine.at, f"`{engine.name}` is at temperature {engine.temperature}"),
                    Label(owner.at, f"`{owner.name}` is at temperature {owner.temperature}"),
                ),
                notes=("their ratio starts at 1 all the same: old and new log-probs are both of a policy that never sampled these rows",),
                help=f"give `{owner.name}` and `{engine.name}` the same temperature",
            )
