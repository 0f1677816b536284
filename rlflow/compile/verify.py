"""The graph and its tables make sense: asserted after every pass. What fails here is a mistake of ours, not of the user."""

from __future__ import annotations

from .facts import Facts
from .ir import Graph


def verify_graph(graph: Graph) -> None:
    """Ids are indices, every field has one writer, names are unique, nothing is read before it is made."""
    for kind in (graph.nodes, graph.fields, graph.devices, graph.workers, graph.feedbacks):
        assert [item.id for item in kind] == list(range(len(kind))), "ids are indices"
    writers = [out for node in graph.nodes for out in node.outs]
    assert sorted(writers) == list(range(len(graph.fields))), "every field has one writer"
    assert len({node.name for node in graph.nodes}) == len(graph.nodes), "names of nodes are unique"
    for node in graph.nodes:
        for use in node.uses:
            assert graph.fields[use.field].node < node.id, f"`{node.name}` reads field {use.field} before it is made"
        assert all(graph.fields[out].node == node.id for out in node.outs), f"`{node.name}` does not write its results"


def verify(graph: Graph, facts: Facts) -> None:
    """Raises AssertionError, naming the id, when a table points at nothing."""
    for table in (facts.specs, facts.rows, facts.scored, facts.corrected, facts.versions):
        for field in table:
            assert 0 <= field < len(graph.fields), f"field {field} is out of range"
    for node in (*facts.failed, *facts.needed, *facts.site, *facts.from_forward, *facts.dropped):
        assert 0 <= node < len(graph.nodes), f"node {node} is out of range"
    for node in (*facts.frees, *facts.filtered):
        assert node in facts.needed, f"node {node} is dropped, and frees something"
    freed = [field for fields in facts.frees.values() for field in fields]
    assert sorted(freed) == sorted(facts.last_by_worker), "what is read is freed, once"
    for i, rows in enumerate(facts.rowsets):
        assert rows.id == i, f"row set {i} has id {rows.id}"
        assert rows.parent is None or rows.parent < i, f"row set {i} is made of a later one"
    for field, rows_id in facts.rows.items():
        assert rows_id < len(facts.rowsets), f"field {field} is about unknown rows {rows_id}"
    for field in facts.specs:
        assert field in facts.rows, f"field {field} has a shape but no rows"
    assert facts.layout.keys() == facts.specs.keys(), "a field with a shape has a layout, and no other has"
    for edge in facts.edges:
        assert set(edge.text) <= set(edge.keyed) <= facts.read, f"{edge.sender} → {edge.receiver} ships what nobody reads"
        assert edge.sender != edge.receiver, f"{edge.sender} sends to itself"
    for shift in facts.sleeps:
        assert graph.workers[shift.worker].devices == shift.devices, f"worker {shift.worker} sleeps on devices that it is not on"
