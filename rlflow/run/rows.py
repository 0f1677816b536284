"""Which rows an operator is handed, worked out on lengths and ids alone.

    base ── pad ──▶ rows and pad rows ── rebalance ──▶ another order ── shard ──▶ a slice a rank ── micro_pack ──▶ micro-batches

Every row set knows how its rows number those of its parent (-1 - i: pad row i), so the rows of any producer that a call wants are
a composition of index arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..compile.facts import RowSet
from ..compile.ir import Node
from ..data.batch import PAD_TOKENS
from ..errors import UsageError
from ..language.config import resolve
from ..language.worker import Worker

Index = npt.NDArray[np.int64]


@dataclass
class Rows:
    """One row set of one batch. index: its rows as numbers of the parent's; cuts: [rank][mini-batch][micro-batch] of those numbers."""

    lengths: Index
    uid: Index
    is_pad: npt.NDArray[np.bool_]
    parent: int | None = None
    index: Index | None = None
    cuts: list[list[list[Index]]] = field(default_factory=list)

    def take(self, index: Index, parent: int) -> Rows:
        pad = index < 0
        return Rows(
            np.where(pad, PAD_TOKENS, self.lengths[index]),
            np.where(pad, index, self.uid[index]),
            np.where(pad, True, self.is_pad[index]),
            parent,
            index,
        )


class RowSets:
    """All row sets of one batch, each made when it is first asked for."""

    def __init__(self, facts: list[RowSet], makers: dict[int, Node], workers: dict[int, Worker], base: int, rows: Rows, seed: int) -> None:
        self._facts, self._makers, self._workers, self._seed = facts, makers, workers, seed
        self._made: dict[int, Rows] = {base: rows}

    def __getitem__(self, rowset: int) -> Rows:
        if rowset not in self._made:
            self._made[rowset] = self._make(rowset)
        return self._made[rowset]

    def _make(self, rowset: int) -> Rows:
        node, parent = self._makers.get(rowset), self._facts[rowset].parent
        if node is None or parent is None:
            raise UsageError(f"rows made by `{self._facts[rowset].how}` cannot be run after the batch is formed")
        above, make, params = self[parent], resolve(node.index or ""), node.params
        if node.rows == "pad":
            return above.take(make(len(above.lengths), multiple=params["multiple"]), parent)
        if node.rows == "permute":
            options = {k: v for k, v in params.items() if k in ("pieces", "mini_batches")}
            return above.take(make(above.lengths, above.is_pad, above.uid, seed=self._seed, **options), parent)
        if node.rows == "shard":
            return self._shard(node, above, parent)
        assert node.rows == "pack"
        return self._pack(node, above)

    def _shard(self, node: Node, above: Rows, parent: int) -> Rows:
        dp = self._workers[node.params["on"]["$worker"]].dp_size
        slices = resolve(node.index or "")(len(above.lengths), dp=dp, mini_batches=node.params.get("mini_batches", 1))
        return Rows(above.lengths, above.uid, above.is_pad, parent, None, [[[mini] for mini in rank] for rank in slices])

    def _pack(self, node: Node, above: Rows) -> Rows:
        """The micro-batches as numbers of the rows that were sharded."""
        slices = [[mini for (mini,) in rank] for rank in above.cuts]
        lengths = [[above.lengths[mini] for mini in rank] for rank in slices]
        packed = resolve(node.index or "")(lengths, max_tokens=node.params["max_tokens"])
        by_rank = zip(slices, packed, strict=True)
        cuts = [[[mini[micro] for micro in micros] for mini, micros in zip(*rank, strict=True)] for rank in by_rank]
        return Rows(above.lengths, above.uid, above.is_pad, above.parent, None, cuts)

    def down(self, index: Index, rowset: int, to: int) -> Index:
        """Numbers of rows of `rowset` as numbers of the rows of its ancestor `to`; a pad row stays one."""
        while rowset != to:
            rows = self[rowset]
            if rows.parent is None:
                raise UsageError("a field of later rows cannot be read by an operator of earlier ones")
            if rows.index is not None:
                index = np.where(index < 0, index, rows.index[index])
            rowset = rows.parent
        return index
