"""Which fields a training call may take from its own forward, so that the call that scored them has one reader less.

    old = actor.log_probs(policy.current, ...)  ── pad, shard, micro_pack ──▶  actor.train(policy.move, ... ppo_clip())
            version k                                                             version k until its one optimizer step is made

The forward of `train` yields the same numbers a second time if the weights are the same (owner, feedback, one step a batch) and
the rows are (the very columns, only chosen and reordered). The losses must allow it (`Loss.from_forward`), and the trainer must
fill the fields in (`@operator(from_forward=...)`): both are in `Use.forward`.
"""

from __future__ import annotations

from .facts import Facts
from .ir import Field, Graph, Node, Use, WeightsUse

Spared = dict[tuple[int, str], int]  # (training call, its parameter) -> the call that scored the field


def from_forward(graph: Graph, facts: Facts) -> Spared:
    """The uses that the forward can stand in for; whether it does depends on who else reads the field."""
    found: Spared = {}
    for node in graph.nodes:
        for use in node.uses:
            if use.forward is not None and _is_one_step(graph, facts, use):
                scorer = graph.nodes[graph.origin(use.field).node]
                if _same_weights(node, scorer) and _same_rows(graph, node, scorer):
                    found[node.id, use.param] = scorer.id
    return found


def _is_one_step(graph: Graph, facts: Facts, use: Use) -> bool:
    """One mini-batch; that it is gone over once is in `use.forward`."""
    rows = facts.rows_of(use.field)
    if rows is None:
        return False
    cuts = (graph.nodes[r.made_by] for r in facts.ancestors(rows) if r.how == "shard")
    return all(cut.params.get("mini_batches", 1) == 1 for cut in cuts)


def _same_weights(node: Node, scorer: Node) -> bool:
    """Row by row, with no option of its own, by the worker that trains, with the version that it takes."""
    moved = _only(node, "move")
    read = _only(scorer, "current")
    if moved is None or read is None or moved.feedback != read.feedback:
        return False
    return scorer.worker == node.worker is not None and scorer.per == "row" and not scorer.params


def _only(node: Node, reading: str) -> WeightsUse | None:
    return node.weights[0] if len(node.weights) == 1 and node.weights[0].reading == reading and node.weights[0].fits else None


def _same_rows(graph: Graph, node: Node, scorer: Node) -> bool:
    """What both read is the same column; what only the scorer reads was made with those columns, by one call."""
    trained: dict[str, set[int]] = {}
    for use in node.uses:
        if use.read and use.declared is not None and use.declared.role is not None:
            trained.setdefault(str(use.declared.role), set()).add(graph.origin(use.field).id)
    makers, others = set[int](), list[Field]()
    for use in scorer.uses:
        origin = graph.origin(use.field)
        alike = trained.get(str(use.declared.role)) if use.declared is not None else None
        if alike is None:
            others.append(origin)
        elif origin.id in alike:
            makers.add(origin.node)
        else:
            return False
    return bool(makers) and all(field.node in makers for field in others)
