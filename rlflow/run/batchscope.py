"""One batch, from its rows to trained weights: who is called with which rows, and which blocks are freed when.

Each node waits for the nodes whose fields it is handed and for the node before it on the same worker, nothing else: rewards and
advantages on the host overlap with old log-probs on the actor. The controller moves keys and row numbers only.

    call ──▶ block: put ──▶ read, read ... ──▶ the last of its readers has returned: freed
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..compile.ir import Node
from ..data.pool.protocol import Key
from .calls import Caller
from .graph import GraphView
from .messages import Call, Done, Source
from .ready import Landed
from .rows import Index, Rows, RowSets


@dataclass
class Made:
    """Where the columns of one producer lie: blocks in the order of the rows of `rowset`."""

    rowset: int
    keys: tuple[Key, ...]


@dataclass
class BatchResult:
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Books(Protocol):
    """Who is told of the blocks that are made on the way, and frees them."""

    def put(self, done: Done) -> None: ...
    def free(self, keys: Iterable[Key]) -> None: ...


class BatchScope:
    """Runs the batch scope of the plan on the rows of one batch, ordered (uid, traj_uid, leaf).

    hops: blocks of the operators of whole groups before boarding, by node, in the order of the groups. Like the rows, they are freed by
    whoever holds them. seed: of the run; each batch deals its groups to mini-batches by its own. timeout: of each call, in seconds.
    """

    def __init__(
        self,
        view: GraphView,
        caller: Caller,
        batch: int,
        landed: Sequence[Landed],
        hops: Mapping[int, tuple[Key, ...]],
        books: Books,
        *,
        seed: int,
        timeout: float,
    ) -> None:
        self.view, self.caller, self.batch, self.books, self.timeout = view, caller, batch, books, timeout
        base = view.facts.rows[view.form.outs[0]]
        uid = np.repeat([t.uid for t in landed], [len(t.lengths) for t in landed])
        lengths = np.array([n for t in landed for n in t.lengths], np.int64)
        rows = Rows(lengths, uid.astype(np.int64), np.zeros(len(lengths), np.bool_))
        self.rowsets = RowSets(view.facts.rowsets, view.index, caller.workers, base, rows, seed + batch)
        blocks = tuple(t.key for t in landed)
        self.made = {node.id: Made(base, blocks) for node in view.stream} | {node: Made(base, keys) for node, keys in hops.items()}
        self.result = BatchResult()
        self._readers = {writer.id: {node.id for node in view.batch if writer.id in view.writers(node)} for writer in view.batch}

    async def run(self) -> BatchResult:
        """Raises an ExceptionGroup of what the first failing operator raised; other operators are cancelled."""
        tasks: dict[int, asyncio.Task[None]] = {}
        last: dict[int | None, int] = {}
        async with asyncio.TaskGroup() as group:
            for node in self.view.batch:
                waits = [tasks[w] for w in self.view.writers(node) if w in tasks]
                if node.worker is not None and node.worker in last:
                    waits.append(tasks[last[node.worker]])
                tasks[node.id] = group.create_task(self._after(waits, node))
                last[node.worker] = node.id
        return self.result

    async def _after(self, waits: Sequence[asyncio.Task[None]], node: Node) -> None:
        for task in waits:
            await asyncio.shield(task)
        start = time.monotonic()
        answers, numbers = await (self._train(node) if node.losses else self._whole(node))
        self.result.seconds[node.name] = time.monotonic() - start
        for done in answers:
            self.books.put(done)
        self._has_read(node)
        for name, value in numbers.items():
            self.result.metrics[name if "/" in name else f"{node.name}/{name}"] = value

    def _has_read(self, node: Node) -> None:
        """What this was the last one to read is freed, and what it made for nobody."""
        for writer in (self.view.writers(node) & self._readers.keys()) | {node.id}:
            self._readers[writer].discard(node.id)
            if not self._readers[writer] and writer in self.made:
                self.books.free(self.made.pop(writer).keys)

    async def _whole(self, node: Node) -> tuple[list[Done], dict[str, float]]:
        """All rows of the batch: split over the ranks where an operator looks at single rows, else on one."""
        rowset = self._rowset(node)
        rows = np.arange(len(self.rowsets[rowset].lengths))
        ranks = self.caller.ranks(node)
        shares = np.array_split(rows, ranks) if node.per == "row" else [rows]
        calls = [(rank, self._call(node, rowset, share)) for rank, share in enumerate(shares) if len(share)]
        answers = await asyncio.gather(*(self.caller.call(node, rank, call, self.timeout) for rank, call in calls))
        keys = tuple(a.key for a in answers if a.key is not None)
        self.made[node.id] = Made(rowset, keys)
        return answers, _of_ranks(answers, [len(share) for share in shares if len(share)], self.view.means)

    async def _train(self, node: Node) -> tuple[list[Done], dict[str, float]]:
        """Every rank on its own rows; what they measure is of all of them."""
        rowset = self._rowset(node)
        jobs = []
        for rank, minis in enumerate(self.rowsets[rowset].cuts):
            flat = np.concatenate([micro for micros in minis for micro in micros])
            cuts = tuple(tuple(len(micro) for micro in micros) for micros in minis)
            jobs.append(self.caller.call(node, rank, self._call(node, rowset, flat, cuts), self.timeout))
        answers = await asyncio.gather(*jobs)
        return answers, answers[0].metrics

    def _rowset(self, node: Node) -> int:
        return next(self.view.facts.rows[use.field] for use in node.uses if use.field in self.view.facts.rows)

    def _call(self, node: Node, rowset: int, index: Index, cuts: tuple[tuple[int, ...], ...] = ()) -> Call:
        """The call that hands `node` these rows of `rowset` of everything it reads."""
        sources = []
        for writer in sorted(self.view.writers(node)):
            made = self.made[writer]
            take = self.rowsets.down(index, rowset, made.rowset)
            whole = np.array_equal(take, np.arange(len(self.rowsets[made.rowset].lengths)))
            sources.append(Source(writer, made.keys, None if whole else tuple(take.tolist())))
        return Call(self.caller.new_id(), node.id, self.batch, _joined(sources), cuts)


def _of_ranks(answers: Sequence[Done], rows: Sequence[int], means: frozenset[str]) -> dict[str, float]:
    """What all ranks measured together: means over all rows; every other number is a count of a rank, and adds up."""
    names = sorted({name for answer in answers for name in answer.metrics})
    of_each = {name: [answer.metrics.get(name, 0.0) for answer in answers] for name in names}
    return {name: float(np.average(each, weights=rows)) if name in means else sum(each) for name, each in of_each.items()}


def _joined(sources: list[Source]) -> tuple[Source, ...]:
    """Producers that share their blocks (all of the stream) are one source."""
    return tuple({source.keys: source for source in reversed(sources)}.values())
