"""What the controller and the other processes tell each other in a step. Sizes are those of msgpack.

controller ── a trajectory: row of the data set, ids, version ──▶ <engine>.rollout ── key, lengths, spans, metrics ──▶ controller
controller ── a call a rank: keys, row numbers, cuts, version ──▶ host, workers ── key, metrics ──▶ controller
controller ── keys that nobody will read again ──▶ whoever holds them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .facts import Edge, Facts
from .ir import Dim, Graph, Node, Use
from .place import CONTROLLER, is_rollout

CALL, DONE, KEY, INT, NUMBER = 20, 17, 16, 3, 12  # bytes; a number is a float64 and its name, the name apart
TRAJECTORY, SPAN = 30, 5  # what a call of the stream has more: the prompt, the engine and its address; what its answer has more


class Steps:
    """How much of what there is in one step.

    sampled: rows that a rollout process makes; asked: trajectories that it is asked for; ahead: batches that it may sample ahead, if any.
    Groups that a filter drops, and those sampled anew for them, come on top.
    """

    def __init__(self, graph: Graph, facts: Facts) -> None:
        self.graph, self.facts = graph, facts
        self.prompts, self._formed = dict[str, Dim](), dict[int, Dim]()
        for node in graph.nodes:
            if node.rows == "form" and node.outs and node.outs[0] in facts.rows:
                self._form(node)
        self.base = self._bases()
        self.sampled, self.asked, self.ahead = dict[str, Dim](), dict[str, Dim](), dict[str, int]()
        for node in graph.nodes:
            if is_rollout(node) and not node.sink and node.id in facts.needed:
                self._sampler(node)

    def _sampler(self, node: Node) -> None:
        site = self.facts.site[node.id]
        asked = [self.facts.rows[use.field] for use in node.uses if use.field in self.facts.rows]
        made = [self.facts.rows[out] for out in node.outs if out in self.facts.rows]
        if asked and made and self.facts.rowsets[made[0]].scope == "stream":
            self.asked[site], self.sampled[site] = self.rows(asked[0]), self.rows(made[0])
            lag = max((self.graph.feedbacks[w.feedback].max_lag for w in node.weights if w.feedback is not None), default=0)
            if lag:
                self.ahead[site] = lag

    def _form(self, node: Node) -> None:
        """prompts: the letter of those of a stream → how many of them make a batch. _formed: rows of the stream → of the batch."""
        batch = self.facts.rowsets[self.facts.rows[node.outs[0]]]
        for above in self.facts.ancestors(batch):
            if above.scope == "stream":
                self.prompts.setdefault(above.prompts, Dim.of(node.params["prompts"]))
                self._formed.setdefault(above.id, batch.size)

    def _bases(self) -> list[int]:
        """Of each row set: the rows of which pad, permute, shard and pack made it."""
        found: list[int] = []
        for rows in self.facts.rowsets:
            planned = rows.parent is not None and rows.how in ("pad", "permute", "shard", "pack")
            found.append(found[rows.parent] if planned and rows.parent is not None else rows.id)
        return found

    def rows(self, rowset: int) -> Dim:
        """Of a row set, over all ranks, pad rows apart. Leaf rows of a tree are as many as come into the batch."""
        rows = self.facts.rowsets[self.base[rowset]]
        prompts = self.prompts.get(rows.prompts)
        size = rows.size if prompts is None else rows.size.put({rows.prompts: prompts})
        return self._formed.get(rows.id, size) if size.number is None else size

    @property
    def groups(self) -> Dim:
        """Prompts of a batch."""
        return next(iter(self.prompts.values()), Dim.of(1))


class _Traffic:
    """What goes to a process and comes from it."""

    def __init__(self) -> None:
        self.sent, self.got = Dim.of(0), Dim.of(0)
        self.told, self.heard = dict[str, None](), dict[str, None]()  # in the order in which they were met

    def add(self, sent: Dim, told: str, got: Dim, heard: str) -> None:
        self.sent, self.got = self.sent + sent, self.got + got
        self.told |= dict.fromkeys(told.split())
        self.heard |= dict.fromkeys(heard.split())


def messages(graph: Graph, facts: Facts, steps: Steps, handed: Mapping[int, tuple[Use, ...]]) -> Iterator[Edge]:
    """Edges from the controller and to it."""
    traffic: dict[str, _Traffic] = {}
    metrics: dict[str, int] = {}
    for node in graph.nodes:
        if node.id in facts.needed and (site := facts.site.get(node.id)) in steps.asked:
            metrics[site] = metrics.get(site, 0) + _metrics(graph, node)
    for site, asked in steps.asked.items():
        answer = DONE + KEY + SPAN + metrics.get(site, 0)
        sent, got = asked * (CALL + TRAJECTORY + KEY), asked * answer + steps.sampled[site] * INT
        traffic.setdefault(site, _Traffic()).add(sent, "row uid traj_uid version keys", got, "key lengths spans metrics")
    for node in graph.nodes:
        site = facts.site.get(node.id, CONTROLLER)
        if node.id in facts.needed and node.per != "run" and site != CONTROLLER and site not in steps.asked:
            sent, got, told = _call(graph, facts, steps, node, handed[node.id])
            traffic.setdefault(site, _Traffic()).add(sent, told, got, "key metrics" if node.outs else "metrics")
    for site, t in traffic.items():
        yield Edge(sender=CONTROLLER, receiver=site, inline=tuple(t.told), step_bytes=t.sent)
        yield Edge(sender=site, receiver=CONTROLLER, inline=tuple(t.heard), step_bytes=t.got)


def _call(graph: Graph, facts: Facts, steps: Steps, node: Node, uses: tuple[Use, ...]) -> tuple[Dim, Dim, str]:
    """Bytes to and from the processes of one call, and what goes to them. On the stream it is made once a group, else once a rank."""
    on_stream = facts.scope(node) == "stream"
    ranks = _ranks(graph, node)
    calls = steps.groups if on_stream else Dim.of(ranks)
    keys, rows, taken = Dim.of(0), Dim.of(0), facts.rows[uses[0].field] if uses and uses[0].field in facts.rows else None
    for source in {_source(graph, facts, steps, use): use for use in uses}.values():
        writer = graph.writer(graph.origin(source.field).id)
        blocks, made = _blocks(graph, facts, steps, writer), facts.rows.get(graph.origin(source.field).id)
        keys += blocks if on_stream else blocks * ranks
        if taken is not None and not on_stream and (ranks > 1 or steps.base[taken] != taken or made is None):
            rows += steps.rows(taken)
    freed = calls * KEY if node.outs else Dim.of(0)
    told = "keys rows cuts version" if node.losses else "keys rows version" if rows.terms else "keys version" if uses else "version"
    return calls * CALL + keys * KEY + rows * INT + freed, calls * (DONE + KEY + _metrics(graph, node)), told


def _source(graph: Graph, facts: Facts, steps: Steps, use: Use) -> int | str:
    """Producers that share their blocks are one: all of a rollout process."""
    writer = graph.origin(use.field).node
    return facts.site[writer] if facts.site[writer] in steps.asked else writer


def _blocks(graph: Graph, facts: Facts, steps: Steps, writer: Node) -> Dim:
    """How many blocks of the pool hold what a call made in a step."""
    site = facts.site[writer.id]
    if site in steps.asked:
        return steps.asked[site]
    return steps.groups if facts.scope(writer) == "stream" else Dim.of(_ranks(graph, writer))


def _ranks(graph: Graph, node: Node) -> int:
    """The ranks that are called: all, where rows are shared out; else the first, a sync once a replica."""
    if node.fills is not None:
        return graph.workers[node.fills].replicas
    shared = node.worker is not None and (node.per == "row" or node.losses)
    return graph.workers[node.worker].dp_size if shared and node.worker is not None else 1


def _metrics(graph: Graph, node: Node) -> int:
    """A mean of every number column that a call makes, by name."""
    fields = [graph.fields[out] for out in node.outs if graph.fields[out].source is None]
    return sum(NUMBER + len(node.name) + len(f.name) for f in fields if f.declared is not None and f.declared.dtype == "f32")
