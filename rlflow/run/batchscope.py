"""One batch, from its rows to trained weights: who is called with which rows, and which blocks are freed when.

Each node waits for the nodes whose fields it is handed and for the node before it on the same worker, nothing else: rewards and
advantages on the host overlap with old log-probs on the actor. What trains waits for all before it, so that until then groups can still be
taken out; an operator that raises after that ends the run. The controller moves keys and row numbers only.

    call ──▶ block: put ──▶ read, read ... ──▶ the last of its readers has returned: freed
      ├─ raised, by row or by group ──▶ once more, group by group ──▶ GroupsFailed: those of the batch that it raised for
      └─ raised after a train step ──▶ OperatorError
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
from ..errors import OperatorError, RlflowError
from .calls import Caller
from .controller.ids import BatchId
from .graph import GraphView
from .messages import Call, Done, Source
from .ready import Landed, OfGroup
from .rows import Index, Rows, RowSets


@dataclass
class Made:
    """Where the columns of one producer lie: blocks in the order of the rows of `rowset`.

    rows: which rows of the blocks are those of `rowset`, where a filter took some out after they were made; None: all.
    """

    rowset: int
    keys: tuple[Key, ...]
    rows: Index | None = None

    @classmethod
    def of_groups(cls, rowset: int, made: Sequence[OfGroup]) -> Made:
        """What an operator made of each of these groups."""
        starts = np.cumsum([0, *(one.rows for one in made)])
        rows = [int(start) + row for start, one in zip(starts, made, strict=False) for row in one.left]
        return cls(rowset, tuple(one.key for one in made), None if len(rows) == starts[-1] else np.array(rows, np.int64))


@dataclass
class BatchResult:
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    judged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(tries, passes) by uid, where the batch scope judges."""


class GroupsFailed(RlflowError):
    """An operator raised for these groups of the batch, and for these alone. why: by uid."""

    def __init__(self, why: Mapping[int, str]) -> None:
        super().__init__(f"an operator raised for {len(why)} of the groups")
        self.why = dict(why)


class Books(Protocol):
    """Who is told of the blocks that are made on the way, and frees them."""

    def put(self, key: Key) -> None: ...
    def free(self, keys: Iterable[Key]) -> None: ...


class BatchScope:
    """Runs the batch scope of the plan on the rows of one batch, ordered (uid, traj_uid, leaf).

    hops: what the operators of whole groups before boarding made, by node, in the order of the groups. Like the rows, they are freed by
    whoever holds them. seed: of the run; each batch deals its groups to mini-batches by its own. timeout: of each call, in seconds.
    """

    def __init__(
        self,
        view: GraphView,
        caller: Caller,
        batch: BatchId,
        landed: Sequence[Landed],
        hops: Mapping[int, Sequence[OfGroup]],
        books: Books,
        *,
        seed: int,
        timeout: float,
    ) -> None:
        self.view, self.caller, self.batch, self.books, self.timeout, self.landed = view, caller, batch, books, timeout, landed
        base = view.facts.rows[view.form.outs[0]]
        uid = np.repeat([t.uid for t in landed], [len(t.lengths) for t in landed])
        lengths = np.array([n for t in landed for n in t.lengths], np.int64)
        rows = Rows(lengths, uid.astype(np.int64), np.zeros(len(lengths), np.bool_))
        self.rowsets = RowSets(view.facts.rowsets, view.index, caller.workers, base, rows, seed + batch.batch)
        blocks = tuple(t.key for t in landed)
        self.made = {node.id: Made(base, blocks) for node in view.stream} | {n: Made.of_groups(base, of) for n, of in hops.items()}
        self.result = BatchResult()
        self._has_moved = False  # a train step was asked for: the batch once more, without a group, would repeat it
        self._loose: dict[int, set[Key]] = {}  # by node: answered, while other ranks were not
        self._readers = {writer.id: {node.id for node in view.batch if writer.id in view.writers(node)} for writer in view.batch}

    async def run(self) -> BatchResult:
        """Raises what the first failing operator raised: GroupsFailed, if it was about some of the groups. The others are given up then.

        Where a train step had begun by then it is an OperatorError.
        """
        try:
            await self._run()
        except BaseException as error:
            self._free_the_rest()
            first = _first(error)
            if self._has_moved and isinstance(first, GroupsFailed):
                first = _too_late(next(iter(first.why.values())))
            raise first from None
        return self.result

    async def _run(self) -> None:
        tasks: dict[int, asyncio.Task[None]] = {}
        last: dict[int | None, int] = {}
        async with asyncio.TaskGroup() as group:
            for node in self.view.batch:
                waits = [tasks[w] for w in self.view.writers(node) if w in tasks]
                if node.worker is not None and node.worker in last:
                    waits.append(tasks[last[node.worker]])
                tasks[node.id] = group.create_task(self._after([*tasks.values()] if node.losses else waits, node))
                last[node.worker] = node.id

    def _free_the_rest(self) -> None:
        """What was made in vain."""
        for node in self.view.batch:
            self.books.free(self._loose.pop(node.id, ()))
            if (made := self.made.pop(node.id, None)) is not None:
                self.books.free(made.keys)

    async def _after(self, waits: Sequence[asyncio.Task[None]], node: Node) -> None:
        for task in waits:
            await asyncio.shield(task)
        start = time.monotonic()
        numbers = await (self._train(node) if node.losses else self._whole(node))
        self.result.seconds[node.name] = time.monotonic() - start
        self._has_read(node)
        for name, value in numbers.items():
            name = name if "/" in name else f"{node.name}/{name}"  # two rewards may have noted the same failure
            self.result.metrics[name] = self.result.metrics.get(name, 0.0) + value

    def _has_read(self, node: Node) -> None:
        """What this was the last one to read is freed, and what it made for nobody."""
        for writer in (self.view.writers(node) & self._readers.keys()) | {node.id}:
            self._readers[writer].discard(node.id)
            if not self._readers[writer] and writer in self.made:
                self.books.free(self.made.pop(writer).keys)

    async def _whole(self, node: Node) -> dict[str, float]:
        """All rows of the batch: split over the ranks where an operator looks at single rows, else on one."""
        rowset = self._rowset(node)
        rows = np.arange(len(self.rowsets[rowset].lengths))
        ranks = self.caller.ranks(node)
        shares = [share for share in (np.array_split(rows, ranks) if node.per == "row" else [rows]) if len(share)]
        answers = await self._answers(node, rowset, shares)
        errors = [answer for answer in answers if isinstance(answer, OperatorError)]
        if errors and node.per in ("row", "group"):
            if self._has_moved:
                raise _too_late(str(errors[0]))
            shares, answers = await self._by_group(node, rowset)
        good = _all_good(answers)
        self.made[node.id] = Made(rowset, _keys(good))
        self._loose.pop(node.id, None)
        self._judge(rowset, [score for answer in good for score in answer.scores])
        return _of_ranks(good, [len(share) for share in shares], self.view.means)

    async def _answers(self, node: Node, rowset: int, shares: Sequence[Index]) -> list[Done | BaseException]:
        """What each share of the rows, dealt to the ranks in turn, came to; every block of it is booked."""
        ranks = self.caller.ranks(node)

        async def ask(i: int, share: Index) -> Done:
            done = await self.caller.call(node, i % ranks, self._call(node, rowset, share), self.timeout)
            if done.key is not None:
                self.books.put(done.key)
                self._loose.setdefault(node.id, set()).add(done.key)
            return done

        return await asyncio.gather(*(ask(i, share) for i, share in enumerate(shares)), return_exceptions=True)

    async def _by_group(self, node: Node, rowset: int) -> tuple[list[Index], list[Done | BaseException]]:
        """Once more, each group for itself. Raises GroupsFailed, unless it raised for none now, or for all: then what it raised."""
        self.books.free(self._loose.pop(node.id, ()))
        uid = self.rowsets[rowset].uid
        uids = list(dict.fromkeys(uid.tolist()))
        shares = [np.flatnonzero(uid == one) for one in uids]
        answers = await self._answers(node, rowset, shares)
        failed = {one: str(answer) for one, answer in zip(uids, answers, strict=True) if isinstance(answer, OperatorError)}
        _all_good([answer for answer in answers if not isinstance(answer, OperatorError)] if len(failed) < len(uids) else answers)
        if failed:
            raise GroupsFailed(failed)
        return shares, answers

    def _judge(self, rowset: int, scores: Sequence[float]) -> None:
        """Rows that are right, by the prompts that they are of; pad rows are of none."""
        rows = self.rowsets[rowset]
        for uid in np.unique(rows.uid[~rows.is_pad]) if scores else ():
            of_uid = np.asarray(scores)[rows.uid == uid]
            self.result.judged[int(uid)] = (len(of_uid), round(float(of_uid.sum())))

    async def _train(self, node: Node) -> dict[str, float]:
        """Every rank on its own rows; what they measure is of all of them. From now on no group can be taken out."""
        self._has_moved = True
        rowset = self._rowset(node)
        jobs = []
        for rank, minis in enumerate(self.rowsets[rowset].cuts):
            flat = np.concatenate([micro for micros in minis for micro in micros])
            cuts = tuple(tuple(len(micro) for micro in micros) for micros in minis)
            jobs.append(self.caller.call(node, rank, self._call(node, rowset, flat, cuts), self.timeout))
        answers = await asyncio.gather(*jobs)
        return answers[0].metrics

    def _rowset(self, node: Node) -> int:
        return next(self.view.facts.rows[use.field] for use in node.uses if use.field in self.view.facts.rows)

    def _call(self, node: Node, rowset: int, index: Index, cuts: tuple[tuple[int, ...], ...] = ()) -> Call:
        """The call that hands `node` these rows of `rowset` of everything it reads."""
        sources = []
        for writer in sorted(self.view.writers(node)):
            made = self.made[writer]
            take = self.rowsets.down(index, rowset, made.rowset)
            whole = made.rows is None and np.array_equal(take, np.arange(len(self.rowsets[made.rowset].lengths)))
            take = take if made.rows is None else np.where(take < 0, take, made.rows[take])
            sources.append(Source(writer, made.keys, None if whole else tuple(take.tolist())))
        return Call(self.caller.new_id(), node.id, self.batch.batch, _joined(sources), cuts, timeline=self.batch.timeline)


def _too_late(why: str) -> OperatorError:
    return OperatorError(f"{why} (a train step of this batch had begun: no group can be taken out of it any more)")


def _keys(answers: Iterable[Done | BaseException]) -> tuple[Key, ...]:
    return tuple(answer.key for answer in answers if isinstance(answer, Done) and answer.key is not None)


def _all_good(answers: Iterable[Done | BaseException]) -> list[Done]:
    """Raises the first error among them."""
    good = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        good.append(answer)
    return good


def _first(error: BaseException) -> BaseException:
    """The first error of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _of_ranks(answers: Sequence[Done], rows: Sequence[int], means: frozenset[str]) -> dict[str, float]:
    """What all ranks measured together: means over all rows; every other number is a count of a rank, and adds up."""
    names = sorted({name for answer in answers for name in answer.metrics})
    of_each = {name: [answer.metrics.get(name, 0.0) for answer in answers] for name in names}
    return {name: float(np.average(each, weights=rows)) if name in means else sum(each) for name, each in of_each.items()}


def _joined(sources: list[Source]) -> tuple[Source, ...]:
    """Producers that share their blocks (all of the stream) are one source."""
    return tuple({source.keys: source for source in reversed(sources)}.values())
