"""Live bytes: what the pool holds while each call runs, and what the process that runs it unpacks for it.

    pool       columns that another call still reads, ragged: born with their writer's block, freed after the last read of the block.
               A trajectory is one block, whatever the operators beside its rollout made; so is what one call on the batch made
    process    the inputs of its call and its results, as right-padded tensors. Training unpacks one micro-batch at a time, and adds the
               fields of its forward: the whole batch is never unpacked at once

What is not a column of the step is not counted: weights, optimizer, activations, KV cache, the data set, held-out prompts.
P counts the prompts in flight, those of the batch in training among them. Calls stand in the order of the pipeline: that some of
them overlap in a run can make the pool hold a column a little longer.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..language.diagnostic import Diagnostic
from .bytes import ColumnBytes
from .facts import Facts
from .ir import Dim, Graph, Node, Spec
from .place import CONTROLLER

POOL = "pool"


class Held(msgspec.Struct, frozen=True):
    """One column that is held while a call runs."""

    field: str
    writer: str
    bytes: Dim


def peak(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills live_bytes, unless a call was refused: then some columns have no size."""
    if facts.failed or any(node.failed for node in graph.nodes):
        return []
    sweep = Sweep(graph, facts)
    for node in sweep.calls():
        unpacked = sum((held.bytes for held in sweep.unpacked(node)), start=Dim.of(0))
        facts.live_bytes[node.id] = {POOL: sweep.pooled} | ({facts.site[node.id]: unpacked} if unpacked != 0 else {})
    return []


def peaks(graph: Graph, facts: Facts) -> dict[str, tuple[tuple[str, Dim], ...]]:
    """By process: the calls at which it may hold the most, each with its bytes. Which is largest depends on the sizes.

    A call that for no sizes from 1 upwards holds more than another is left out.
    """
    found: dict[str, list[tuple[str, Dim]]] = {}
    for node, by_process in facts.live_bytes.items():
        for process, size in by_process.items():
            above = found.setdefault(process, [])
            if not any(_covers(other, size) for _, other in above):
                above[:] = [*(pair for pair in above if not _covers(size, pair[1])), (graph.nodes[node].name, size)]
    return {process: tuple(pairs) for process, pairs in found.items()}


def held_at(graph: Graph, facts: Facts, node: int, process: str) -> list[Held]:
    """The columns behind one number of live_bytes."""
    sweep = Sweep(graph, facts)
    at = next(call for call in sweep.calls() if call.id == node)
    return list(sweep.held.values()) if process == POOL else list(sweep.unpacked(at))


def _covers(one: Dim, other: Dim) -> bool:
    """In letters of sizes less one, so that S - 1 is no negative term, no product of the difference is."""
    more = one - other
    return all(factor >= 0 for factor in more.put({letter: Dim.letter(letter) + 1 for letter in more.letters}).terms.values())


class Sweep:
    """The calls of a step in order, with what the pool holds during each: `held` by field, `pooled` together."""

    def __init__(self, graph: Graph, facts: Facts) -> None:
        self.graph, self.facts = graph, facts
        self.held: dict[int, Held] = {}
        self.pooled = Dim.of(0)
        self._bytes = ColumnBytes()
        self._freed = self._blocks()

    def calls(self) -> Iterator[Node]:
        """Of a step: what works on prompts that no batch is made of, an evaluation, is none."""
        roots: list[int] = []
        for rows in self.facts.rowsets:
            roots.append(rows.id if rows.parent is None else roots[rows.parent])
        trained = {roots[rows.id] for rows in self.facts.rowsets if rows.how == "form"}
        for node in self.graph.nodes:
            about = {roots[self.facts.rows[f]] for f in (*(u.field for u in node.uses), *node.outs) if f in self.facts.rows}
            if node.is_record or node.id not in self.facts.needed or not about or (trained and trained.isdisjoint(about)):
                continue
            self._put(node)
            yield node
            for field in self._freed.get(node.id, ()):
                if field in self.held:  # columns of an evaluation never were
                    self.pooled -= self.held.pop(field).bytes

    def unpacked(self, node: Node) -> Iterator[Held]:
        """Inputs and results of a call, in one rank of its worker."""
        if self.facts.site[node.id] == CONTROLLER:
            return  # lengths and ids only
        ways = self._ways(node)
        for use in node.uses:
            if use.field in self.facts.read and (spec := self.facts.specs.get(use.field)) is not None:
                origin = self.graph.origin(use.field)
                size = self._bytes(self._together(node, use.field, spec), origin.name)
                yield Held(origin.name, self.graph.nodes[origin.node].name, _split(size, ways))
        for out in node.outs:
            field = self.graph.fields[out]
            if field.source is None and (spec := self.facts.specs.get(out)) is not None:
                yield Held(field.name, node.name, _split(self._bytes(self._together(node, out, spec), field.name), ways))
        yield from self._forward(node)

    def _put(self, node: Node) -> None:
        for out in node.outs:
            if self._is_pooled(node, out):
                field = self.graph.fields[out]
                self.held[out] = Held(field.name, node.name, self._bytes(self.facts.specs[out], field.name))
                self.pooled += self.held[out].bytes

    def _is_pooled(self, node: Node, out: int) -> bool:
        """Somebody reads it; of what is made beside the rollout, somebody in another process."""
        readers = self.facts.last_by_worker.get(out, {})
        if out not in self.facts.specs or not readers:
            return False
        return not self._is_beside_rollout(node) or readers.keys() != {self.facts.site[node.id]}

    def _is_beside_rollout(self, node: Node) -> bool:
        return node.per == "row" and self.facts.scope(node) == "stream"

    def _blocks(self) -> dict[int, list[int]]:
        """Call -> fields whose block nobody reads after it."""
        blocks: dict[str | int, list[int]] = {}
        for field in self.facts.last_by_worker:
            node = self.graph.writer(field)
            if self._is_pooled(node, field):
                block = self.facts.site[node.id] if self._is_beside_rollout(node) else node.id
                blocks.setdefault(block, []).append(field)
        freed: dict[int, list[int]] = {}
        for fields in blocks.values():
            freed.setdefault(max(self.facts.last_read[field] for field in fields), []).extend(fields)
        return freed

    def _ways(self, node: Node) -> int:
        """A call on single rows of the batch is split over the ranks of its worker."""
        if node.per != "row" or node.worker is None or self.facts.scope(node) != "batch":
            return 1
        return self.graph.workers[node.worker].dp_size

    def _together(self, node: Node, field: int, spec: Spec) -> Spec:
        """The rows that a call is handed at once: an operator of groups before the batch sees one group."""
        rows = self.facts.rows_of(field)
        if node.per != "group" or rows is None or rows.scope != "stream" or not rows.prompts:
            return spec
        return Spec(spec.dtype, tuple(dim.put({rows.prompts: Dim.of(1)}) for dim in spec.shape), spec.role)

    def _forward(self, node: Node) -> Iterator[Held]:
        """What the forward of a training call yields for its micro-batch."""
        letters: dict[str, Dim] = {}
        for use in node.uses:
            if use.declared is not None and use.field in self.facts.specs:
                for dim, size in zip(use.declared.shape, self.facts.specs[use.field].shape, strict=True):
                    if dim.single is not None:
                        letters.setdefault(dim.single, size)
        yielded = {name: spec for loss in node.losses if loss.active for name, spec in loss.forward.items()}
        for name, spec in yielded.items():
            shape = tuple(dim.put(letters) for dim in spec.shape)
            yield Held(name, f"{node.name}, forward", self._bytes(Spec(spec.dtype, shape, spec.role), name))


def _split(size: Dim, ways: int) -> Dim:
    """Over so many ranks; the whole, where it is not known to divide."""
    if (number := size.number) is not None:
        return Dim.of(-(-number // ways))
    divides = all(factor % ways == 0 for factor in size.terms.values())
    return Dim({product: factor // ways for product, factor in size.terms.items()}) if divides else size
