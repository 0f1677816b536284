"""Runs one cut: counts, first pass, terms and gradients of every micro-batch, as a train engine would over real ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rlflow.engines.train.context import ContextRows
from rlflow.engines.train.denominators import Counts
from rlflow.engines.train.packed import PackedRows
from rlflow.engines.train.statistics import Measured, measured, statistics_of, word
from rlflow.engines.train.terms import loss_names, micro_loss
from rlflow.engines.train.view import Layout, LossRows
from rlflow.language.loss import Loss, has_statistic

from .baton import Together
from .drawn import LENGTHS, Drawn
from .given import Given, alone, counts_of

if TYPE_CHECKING:
    from .cuts import Cut

__all__ = ["Harness"]

DRAWN = "rows are drawn with the fields of rlflow's own losses, and those that the records of the loss declare"
Gradients = dict[str, Tensor]
T = TypeVar("T")


class Piece(NamedTuple):
    """A micro-batch on one cp rank. forward: leaves of the graph."""

    forward: Given
    leaves: dict[str, Tensor]
    view: LossRows
    group: Together | None


class Harness:
    """Gradients of one loss on drawn rows. What was worked out for a micro-batch is kept: cuts share most of theirs."""

    def __init__(self, loss: Loss[Any, Any], drawn: Drawn) -> None:
        self._loss, self._drawn, self._losses = loss, drawn, loss_names([loss])
        self._kept: dict[Any, Gradients] = {}
        self._counts: dict[Any, Counts] = {}
        self._made: dict[Any, list[Piece]] = {}

    def __enter__(self) -> Harness:
        self._threads = ThreadPoolExecutor(2)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def gradient(self, cut: Cut, dtype: torch.dtype) -> Gradients:
        """d loss / d each output of the forward, summed over micro-batches and ranks: f64, of all rows, padding rows too."""
        micros = [micro for of_rank in cut.micro_batches() for micro in of_rank]
        counts = self._counted(cut)
        if has_statistic(self._loss):
            found = self._with_statistic(micros, cut, dtype, counts)
        else:
            found = [self._remembered(micro, cut, dtype, counts) for micro in micros]
        return {name: sum((one[name] for one in found), torch.zeros(())) for name in found[0]}

    def _counted(self, cut: Cut) -> Counts:
        key = (cut.dp, cut.shuffled, cut.pads, cut.micro)
        if key not in self._counts:
            tables = [[Given("rows", DRAWN, self._drawn.keys(micro)) for micro in rank] for rank in cut.micro_batches()]
            self._counts[key] = counts_of(self._loss, tables)[0]
        return self._counts[key]

    def _remembered(self, micro: tuple[int, ...], cut: Cut, dtype: torch.dtype, counts: Counts) -> Gradients:
        key = (micro, cut.cp, cut.packed, cut.junk, dtype, tuple(sorted(counts.numbers.items())))
        if key not in self._kept:
            self._kept[key] = self._terms(self._pieces(micro, cut, dtype), micro, counts, None, 0)
        return self._kept[key]

    def _with_statistic(self, micros: Sequence[tuple[int, ...]], cut: Cut, dtype: torch.dtype, counts: Counts) -> list[Gradients]:
        pieces = [self._pieces(micro, cut, dtype) for micro in micros]
        mine: list[Measured] = [one for group in pieces for one in self._on_cp(group, self._measured)]
        found = statistics_of(self._losses, mine, [word(mine)], alone(), "the first pass")
        return [self._terms(group, micro, counts, found, i * cut.cp) for i, (group, micro) in enumerate(zip(pieces, micros, strict=True))]

    def _measured(self, rank: int, piece: Piece) -> Measured:
        return measured(piece.forward, piece.view, self._losses)

    # --- one micro-batch ----------------------------------------------------------------------------------------------------------------
    def _pieces(self, micro: tuple[int, ...], cut: Cut, dtype: torch.dtype) -> list[Piece]:
        """A piece a cp rank, without a gradient yet."""
        key = (micro, cut.cp, cut.packed, cut.junk, dtype)
        if key not in self._made:
            self._made[key] = self._cut(micro, cut, dtype)
        for piece in self._made[key]:
            for leaf in piece.leaves.values():
                leaf.grad = None
        return self._made[key]

    def _cut(self, micro: tuple[int, ...], cut: Cut, dtype: torch.dtype) -> list[Piece]:
        fields, outputs = self._drawn.take(micro, cut.junk, dtype)
        rows: Any = Given("rows", DRAWN, fields)
        forward: Any = Given("forward", DRAWN, outputs)
        layout, names = Layout(), tuple(outputs)
        if cut.packed:
            packed = PackedRows(rows)
            rows, forward, layout = packed, packed.like(forward), packed.layout
        if cut.cp == 1:
            return [_piece(rows, forward, layout, names, None)]
        group = Together(cut.cp)
        slices = [ContextRows(rows, layout, rank=rank, size=cut.cp, reduce=group.of(rank)) for rank in range(cut.cp)]
        return [_piece(one, one.like(forward), one.layout, names, group) for one in slices]

    def _terms(self, pieces: list[Piece], micro: tuple[int, ...], counts: Counts, statistics: Any, first: int) -> Gradients:
        def work(rank: int, piece: Piece) -> None:
            given = statistics.of(first + rank, piece.forward, piece.view) if statistics else {}
            share, _ = micro_loss(piece.forward, piece.view, self._losses, counts, given)
            if share.requires_grad:
                share.backward()  # type: ignore[no-untyped-call]

        self._on_cp(pieces, work)
        return _in_place(pieces, micro)

    def _on_cp(self, pieces: Sequence[Piece], work: Callable[[int, Piece], T]) -> list[T]:
        """`work` on each cp rank."""
        group = pieces[0].group
        if group is None:
            return [work(0, pieces[0])]
        return group.run_all(self._threads, [partial(work, rank, piece) for rank, piece in enumerate(pieces)])


def _piece(rows: Any, forward: Any, layout: Layout, names: Sequence[str], group: Together | None) -> Piece:
    leaves = {name: getattr(forward, name).detach().clone().requires_grad_() for name in names}
    given = Given("forward", DRAWN, leaves)
    return Piece(given, leaves, LossRows(rows, given, {}, layout), group)


def _in_place(pieces: list[Piece], micro: tuple[int, ...]) -> Gradients:
    """The gradients of the pieces, in the place of their rows and positions among all drawn rows."""
    found: Gradients = {}
    for piece in pieces:
        row, column = piece.view.places()
        whose = torch.tensor(micro)[row]
        for name, leaf in piece.leaves.items():
            total = found.setdefault(name, torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.float64))
            if leaf.grad is not None and leaf.ndim == 2:
                total.index_put_((whose, column), leaf.grad.double().reshape(-1), accumulate=True)
            elif leaf.grad is not None:
                total[:, -1].index_put_((torch.tensor(micro),), leaf.grad.double(), accumulate=True)
    return found
