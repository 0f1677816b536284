"""Live bytes: what the pool may hold while a call runs, and what the process that runs it unpacks for it.

    pool       columns that somebody still reads, ragged. A trajectory is one block, with what the operators beside its rollout made of it;
               it is held until its batch is trained, and so is what was made of whole groups before the batch. What one call on the
               batch made is one block, freed when the last of its readers has returned
    process    the inputs of its call and its results, as right-padded tensors; of training one micro-batch, with the fields of its
               forward: that is what its device holds (in host memory, the rows of the rank lie beside it)

Calls that do not wait for each other may overlap, so a block counts unless all its readers surely have returned before: what they wait
for is what they read, and the call before on the same worker.

What is not a column of the step is not counted: weights, optimizer, activations, KV cache, the data set, held-out prompts.
P counts the prompts in flight, those of the batch in training among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from .bytes import ColumnBytes
from .drops import reads
from .facts import Facts
from .ir import Dim, Graph, Node, Spec
from .place import CONTROLLER
from .transport import handed

POOL = "pool"


class Held(msgspec.Struct, frozen=True):
    """One column that is held while a call runs."""

    field: str
    writer: str
    bytes: Dim


def live_bytes(graph: Graph, facts: Facts) -> dict[int, dict[str, Dim]]:
    """Node -> the pool, and the process that runs it -> bytes that they may hold meanwhile, as polynomials in the sizes."""
    live, found = Live(graph, facts), dict[int, dict[str, Dim]]()
    for node in live.calls:
        unpacked = _total(live.unpacked(node))
        found[node.id] = {POOL: _total(live.pooled(node))} | ({facts.site[node.id]: unpacked} if unpacked != 0 else {})
    return found


def peaks(graph: Graph, facts: Facts) -> dict[str, tuple[tuple[str, Dim], ...]]:
    """By process: the calls at which it may hold the most, each with its bytes. Which is largest depends on the sizes.

    A call that for no sizes from 1 upwards holds more than another is left out.
    """
    found: dict[str, list[tuple[str, Dim]]] = {}
    for node, by_process in live_bytes(graph, facts).items():
        for process, size in by_process.items():
            above = found.setdefault(process, [])
            if not any(_covers(other, size) for _, other in above):
                above[:] = [*(pair for pair in above if not _covers(size, pair[1])), (graph.nodes[node].name, size)]
    return {process: tuple(pairs) for process, pairs in found.items()}


def _total(held: Iterable[Held]) -> Dim:
    """Columns of one size are many: each size is added once."""
    return sum((size * count for size, count in Counter(one.bytes for one in held).items()), start=Dim.of(0))


def _covers(one: Dim, other: Dim) -> bool:
    """In letters of sizes less one, so that S - 1 is no negative term, no product of the difference is."""
    more = one - other
    return all(factor >= 0 for factor in more.put({letter: Dim.letter(letter) + 1 for letter in more.letters}).terms.values())


class Live:
    """The calls of a step, what the pool may hold during each, and what each unpacks. Of a plan that was not refused."""

    def __init__(self, graph: Graph, facts: Facts) -> None:
        self.graph, self.facts = graph, facts
        self._bytes = ColumnBytes()
        self._readers: dict[int, int] = {}  # field, where it is made -> the calls that read it, a bit each
        self._elsewhere: set[int] = set()  # fields that a call in another process reads
        self.calls = list(self._of_a_step())
        self._read()
        self._rows = [(node.id, held) for node in self.calls if self._is_before_batch(node) for held in self._made(node)]
        self._blocks = [(node.id, *self._block(node)) for node in self.calls if not self._is_before_batch(node)]
        self._done = self._surely_done()

    def _of_a_step(self) -> Iterator[Node]:
        """Not what works on prompts that no batch is made of, an evaluation, nor row plans: those are lengths and ids only."""
        roots: list[int] = []
        for rows in self.facts.rowsets:
            roots.append(rows.id if rows.parent is None else roots[rows.parent])
        trained = {roots[rows.id] for rows in self.facts.rowsets if rows.how == "form"}
        for node in self.graph.nodes:
            about = {roots[self.facts.rows[f]] for f in (*(u.field for u in node.uses), *node.outs) if f in self.facts.rows}
            if node.is_record or node.id not in self.facts.needed or self.facts.site[node.id] == CONTROLLER:
                continue
            if about and not (trained and trained.isdisjoint(about)):
                yield node

    def _read(self) -> None:
        for node in self.calls:
            for field in reads(self.graph, self.facts, node):
                self._readers[field] = self._readers.get(field, 0) | 1 << node.id
                if self.facts.site[node.id] != self.facts.site[self.graph.fields[field].node]:
                    self._elsewhere.add(field)

    # --- the pool -----------------------------------------------------------------------------------------------------------------
    def pooled(self, node: Node) -> Iterator[Held]:
        """What the pool may hold while `node` runs, its results included."""
        yield from (held for maker, held in self._rows if maker <= node.id)
        done = self._done[node.id]
        for maker, readers, block in self._blocks:
            if maker <= node.id and (readers & ~done or maker == node.id):
                yield from block

    def _is_before_batch(self, node: Node) -> bool:
        return self.facts.scope(node) == "stream"

    def _made(self, node: Node) -> list[Held]:
        """The results that go to the pool: those that are read, and of what is made beside the rollout, those that leave it."""
        beside = node.per == "row" and self._is_before_batch(node)
        kept = [out for out in node.outs if out in self._readers and (out in self._elsewhere or not beside)]
        return [Held(self.graph.fields[out].name, node.name, self._of(out)) for out in kept if out in self.facts.specs]

    def _block(self, node: Node) -> tuple[int, list[Held]]:
        """Who reads anything of it, and what it is."""
        readers = 0
        for out in node.outs:
            readers |= self._readers.get(out, 0)
        return readers, self._made(node)

    def _of(self, field: int) -> Dim:
        return self._bytes(self.facts.specs[field], self.graph.fields[field].name)

    def _surely_done(self) -> dict[int, int]:
        """Call -> the calls that have returned before it starts, a bit each. Those of the stream run one after the other, and first."""
        done: dict[int, int] = {}
        stream, last = 0, dict[int, int]()
        for node in self.calls:
            before = stream
            waits = {self.graph.origin(use.field).node for use in node.uses if use.field in self.facts.read}
            if node.worker is not None and node.worker in last:
                waits.add(last[node.worker])
            for other in waits:
                before |= done.get(other, 0) | 1 << other
            done[node.id] = before
            if self._is_before_batch(node):
                stream |= 1 << node.id
            elif node.worker is not None:
                last[node.worker] = node.id
        return done

    # --- processes ----------------------------------------------------------------------------------------------------------------
    def unpacked(self, node: Node) -> Iterator[Held]:
        """Inputs and results of a call, in one rank of its worker."""
        ways = self._ways(node)
        for use in handed(self.graph, self.facts, node):
            origin = self.graph.origin(use.field)
            size = self._bytes(self._together(node, use.field), origin.name)
            yield Held(origin.name, self.graph.nodes[origin.node].name, _split(size, ways))
        for out in node.outs:
            field = self.graph.fields[out]
            if field.source is None and out in self.facts.specs:
                yield Held(field.name, node.name, _split(self._bytes(self._together(node, out), field.name), ways))
        yield from self._forward(node)

    def _ways(self, node: Node) -> int:
        """A call on single rows of the batch is split over the ranks of its worker."""
        if node.per != "row" or node.worker is None or self.facts.scope(node) != "batch":
            return 1
        return self.graph.workers[node.worker].dp_size

    def _together(self, node: Node, field: int) -> Spec:
        """The rows that a call is handed at once: an operator of groups before the batch sees one group."""
        spec, rows = self.facts.specs[field], self.facts.rows_of(field)
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
