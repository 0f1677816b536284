"""What a loss reads in an engine: the rows, in the layout in which the forward ran, with sums over one row that are right in it.

    padded      response_mask [b, R]      Layout()
    packed      response_mask [1, N]      Layout(row=i64[N], position=i64[N])           rows end to end, see packed.py
    cp slices   part of either            Layout(..., position, reduce)                 `reduce` sums [b] over the ranks of a cp group

A rank of a cp group has some positions of every row, so a term a token is on one rank, but a term a row, [b], is whole on each: an
engine counts it 1 / cp_size times on each of them, and sums gradients over cp as over dp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlflow.language.rowview import RowView

__all__ = ["Layout", "LossRows"]

Reduce = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a micro-batch lie. A field that is None: as in right-padded whole rows.

    row: i64[N], of which row each token of a packed [1, N] is. position: i64, in the layout of the tokens, which of its row it is.
    reduce: [b] → its sum over the cp ranks; a collective, so every cp rank runs the same losses on its part of the same rows.
    """

    row: Tensor | None = None
    position: Tensor | None = None
    reduce: Reduce | None = None
    cp_size: int = 1


class LossRows(RowView):
    """The rows of a micro-batch as one loss sees them: numbers a token are 0 outside `response_mask`, whatever lay there.

    So a term that a loss masks after it was computed has no NaN of theirs in its gradient. What the forward yields is handed on as it is:
    numbers of a model, also where nothing is trained.

    rows: their fields, laid out as `layout` says. sources: fields that the rows lack → field of the forward, detached. statistics: what
    the loss made of the mini-batch.
    """

    def __init__(
        self,
        rows: Any,
        forward: Any,
        sources: Mapping[str, str],
        layout: Layout | None = None,
        statistics: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._rows, self._layout, self._statistics = rows, layout or Layout(), statistics
        mask: Tensor = rows.response_mask.bool()
        given = {name: getattr(rows, name) for name in _numbers(rows)}
        given |= {name: getattr(forward, source).detach() for name, source in sources.items()}
        for name, value in given.items():
            setattr(self, name, value.where(mask, value.new_zeros(())) if value.shape == mask.shape else value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    @property
    def cp_size(self) -> int:
        """Ranks that share these rows: a term a row counts 1 / cp_size on each."""
        return self._layout.cp_size

    def with_statistics(self, statistics: Mapping[str, Tensor]) -> LossRows:
        """The same rows, for a loss that made these of the mini-batch."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _statistics=statistics)
        return other

    # --- the row view -----------------------------------------------------------------------------------------------------------------
    def per_token(self, y: Tensor) -> Tensor:
        return super().per_token(y) if self._layout.row is None else y[self._layout.row].unsqueeze(0)

    def positions(self) -> Tensor:
        return super().positions() if self._layout.position is None else self._layout.position

    def statistics(self) -> Mapping[str, Tensor]:
        return super().statistics() if self._statistics is None else self._statistics

    def _sum(self, x: Tensor) -> Tensor:
        mine = self.local_sum(x)
        return mine if self._layout.reduce is None else sum_over(mine, self._layout.reduce)

    def local_sum(self, x: Tensor) -> Tensor:
        """Σ over each row of what this rank has of it: tokens → [b]. No collective."""
        if self._layout.row is None:
            return super()._sum(x)
        flat = x.reshape(-1)
        flat = flat.long() if flat.dtype == torch.bool else flat
        return flat.new_zeros(self._rows.is_pad.shape[0]).index_add(0, self._layout.row, flat)

    def places(self) -> tuple[Tensor, Tensor]:
        """Row and position of every token, i64[tokens] each."""
        position = self.positions()
        row = torch.arange(position.shape[0], device=position.device) if self._layout.row is None else self._layout.row
        return (row.repeat_interleave(position.shape[1]) if self._layout.row is None else row), position.reshape(-1)

    # --- for messages -----------------------------------------------------------------------------------------------------------------
    def place(self, i: int, j: int) -> tuple[int, int]:
        """Row and position of the token at [i, j] of the layout."""
        row = i if self._layout.row is None else int(self._layout.row[j])
        return row, j if self._layout.position is None else int(self._layout.position[i, j])


def _numbers(rows: Any) -> list[str]:
    """The fields of a record that hold floats, also of one that is seen packed or in slices."""
    while "_rows" in vars(rows):
        rows = vars(rows)["_rows"]
    return [name for name, value in vars(rows).items() if isinstance(value, Tensor) and value.is_floating_point()]


def sum_over(x: Tensor, reduce: Reduce) -> Tensor:
    """`reduce(x)`, its gradient too: y = Σ over ranks x is on every rank, so dx = Σ over ranks dy."""
    out: Tensor = _SumOver.apply(x, reduce)  # type: ignore[no-untyped-call]
    return out


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, reduce: Reduce) -> Tensor:
        ctx.reduce = reduce
        return reduce(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.reduce(gradients[0]), None
