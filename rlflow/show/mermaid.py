"""`rlflow graph FILE.py --mermaid`: the ring as a mermaid flowchart.

process          a subgraph
call             a box in the process that runs it, dashed when the plan drops it
feedback         a hexagon; its readings are edges out of it, `k + 1` is the thick edge back into it
fields           an edge: which, and from process to process how many bytes a row
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..compile.bytes import row_bytes
from ..compile.ir import Dim, Field, Graph, Node
from ..compile.place import CONTROLLER
from ..compile.plan import Plan

NAMED = 4  # fields that a label lists; of more it says how many
UNSAFE = re.compile(r"[^\w \-+*.,:()@=/→]")


def mermaid(plan: Plan) -> str:
    """The whole graph, one statement a line."""
    graph = plan.graph
    calls = [node for node in graph.nodes if not node.is_record]
    out = ["flowchart LR"]
    for i, site in enumerate(dict.fromkeys(plan.facts.site[node.id] for node in calls)):
        out += [f"  subgraph p{i}[{_quoted(site)}]"]
        out += [f"    n{node.id}[{_quoted(node.name)}]" for node in calls if plan.facts.site[node.id] == site]
        out += ["  end"]
    out += [f"  f{feedback.id}{{{{{_quoted(feedback.name)}}}}}" for feedback in graph.feedbacks]
    out += [f"  {line}" for node in calls for line in (*_fields(plan, node), *_weights(graph, node))]
    out += [f"  {line}" for line in _feedbacks(graph)]
    dropped = [f"n{node.id}" for node in calls if node.id not in plan.facts.needed]
    if dropped:
        out += ["  classDef dropped stroke-dasharray: 5 5", f"  class {','.join(dropped)} dropped"]
    return "\n".join(out)


def _fields(plan: Plan, node: Node) -> Iterator[str]:
    """What each earlier call hands to this one, seen through records; of a row operator, what somebody reads later."""
    graph, facts = plan.graph, plan.facts
    read = {use.field for use in node.uses if use.read} | {use.field for field, use in graph.mirrors(node) if field.id in facts.read}
    by_writer: dict[int, dict[int, Field]] = {}
    for use in node.uses:
        made = _through_records(graph, use.field)
        if use.field in read:
            by_writer.setdefault(made.node, {})[made.id] = made
    for writer, fields in by_writer.items():
        arrow = "-->" if {writer, node.id} <= facts.needed else "-.->"
        yield f"n{writer} {arrow}|{_quoted(_label(plan, node, list(fields.values())))}| n{node.id}"


def _through_records(graph: Graph, field: int) -> Field:
    found = graph.fields[field]
    while graph.nodes[found.node].is_record and found.source is not None:
        found = graph.fields[found.source]
    return found


def _label(plan: Plan, node: Node, fields: list[Field]) -> str:
    """Their names, and the bytes of those that are made in another process. The controller is sent no field."""
    names = [field.name for field in fields]
    label = ", ".join(names) if len(names) <= NAMED else f"{', '.join(names[: NAMED - 1])} + {len(names) - NAMED + 1} more"
    here, site = plan.facts.site[node.id], plan.facts.site
    sent = [field for field in fields if here not in (CONTROLLER, site[plan.graph.origin(field.id).node])]
    sizes = [row_bytes(plan.facts.specs[field.id]) for field in sent]
    size = sum((one for one in sizes if one is not None), start=Dim.of(0))
    parts = [f"{size} bytes a row"] * (size != 0) + ["text"] * (None in sizes)
    return f"{label}: {' + '.join(parts)}" if parts else label


def _weights(graph: Graph, node: Node) -> Iterator[str]:
    for use in node.weights:
        if use.writer is not None:
            yield f"n{use.writer} -->|{_quoted(f'weights {use.reading}')}| n{node.id}"
        elif use.feedback is not None:
            yield f"f{use.feedback} -->|{_quoted(use.reading)}| n{node.id}"


def _feedbacks(graph: Graph) -> Iterator[str]:
    for feedback in graph.feedbacks:
        yield f"n{feedback.init} -->|{_quoted('version 0')}| f{feedback.id}"
        for close in feedback.closes:
            if close.writer is not None:
                yield f"n{close.writer} ==>|{_quoted(f'{feedback.name} k + 1')}| f{feedback.id}"


def _quoted(text: str) -> str:
    """A label: what mermaid or HTML could take for syntax is written as a character code."""
    return '"' + UNSAFE.sub(lambda found: f"#{ord(found[0])};", text) + '"'
