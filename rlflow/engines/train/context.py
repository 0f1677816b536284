"""Context parallelism: the positions of every row are shared out over the ranks of a cp group. What one of them hands to a loss.

    positions of a row   0 1 | 2 3 | 4 5 | 6 7      in 2 * cp_size chunks; rank r has chunks r and 2 * cp_size - 1 - r, so that
    cp rank 0            0 1 |     |     | 6 7      causal attention costs all alike (as Megatron and Transformer Engine cut)
    cp rank 1                | 2 3 | 4 5 |

Packed rows are cut each by its own length. The sums of rows that a loss asks for are reduced over the group: `Layout.reduce`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .view import Layout, Reduce

__all__ = ["ContextRows", "share_of"]

OWN = ("columns", "layout", "_shape")


def share_of(position: Tensor, lengths: Tensor, *, rank: int, size: int) -> Tensor:
    """bool: which positions of rows of these lengths (broadcast) are on a cp rank."""
    chunk = position * (2 * size) // lengths.clamp(min=1)
    return torch.minimum(chunk, 2 * size - 1 - chunk) == rank


class ContextRows:
    """The part of a micro-batch's tokens that is on one cp rank; what has one number a row is whole on each.

    rows: as the group has them together, laid out as `layout` says. reduce: [b] → its sum over the group, a collective.
    """

    def __init__(self, rows: Any, layout: Layout, *, rank: int, size: int, reduce: Reduce) -> None:
        mask = rows.response_mask
        position = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0) if layout.position is None else layout.position
        lengths = position.new_full((1,), mask.shape[1])
        if layout.row is not None:
            ends = position.new_zeros(rows.is_pad.shape[0]).scatter_reduce(0, layout.row, position[0] + 1, "amax")
            lengths = ends[layout.row].unsqueeze(0)
        self._rows, self._shape = rows, mask.shape
        self.columns = share_of(position, lengths, rank=rank, size=size)[0].nonzero()[:, 0]
        row = None if layout.row is None else layout.row[self.columns]
        mine = position[:, self.columns].expand(mask.shape[0], -1)
        self.layout = Layout(row=row, position=mine, reduce=reduce, cp_size=size)

    def like(self, fields: Any) -> ContextRows:
        """Other fields of the same tokens, cut alike."""
        other = object.__new__(type(self))
        other.__dict__.update({name: self.__dict__[name] for name in OWN}, _rows=fields)
        return other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._rows, name)
        if not isinstance(value, Tensor) or value.shape[:2] != self._shape:
            return value
        setattr(self, name, value[:, self.columns])
        return self.__dict__[name]
