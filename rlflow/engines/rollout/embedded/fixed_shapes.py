"""Products whose shapes depend on a row alone, so that its numbers do not depend on the rows that run beside it.

A matrix product of another shape may add in another order, and its last bits differ. So a row is always computed in shapes of its own:

    linear layers        tiles of TILE rows, filled up with zeros
    prefill              rows of one `prefill_width` together; the width is rounded up from the row's own length
    decode's attention   the sum over positions in spans at fixed places, 0-64, 64-128, 128-192, 192-256, 256-384, ...: one product a
                         span, added in order; spans behind a row's end add exact zeros

Which row of a tile it is, and how many tiles or spans there are, changes nothing. (Scores and softmax are as wide as the longest row
needs, in multiples of SPAN: a score is a sum over the head alone, and a softmax adds zeros behind its end.) With one torch thread, that
is: more of them cut elementwise work where a row's last bits could change.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["SPAN", "TILE", "TiledLinear", "attend", "filled_up", "prefill_width", "slab_length", "spans", "tile_linears"]

TILE = 16  # rows; times any even width, it is whole SIMD vectors, so elementwise kernels have no remainder that is computed otherwise
SPAN = 64  # positions of the first spans; later ones are a quarter to a half of all before them


def filled_up(rows: int, to: int = TILE) -> int:
    """The next multiple: rows of whole tiles."""
    return -(-rows // to) * to


def _rounded(length: int, least: int) -> int:
    """Up to the next of least, 2·least, ... and then two steps an octave: 384, 512, 768, 1024, ..."""
    return filled_up(length, max(least, 1 << max(length - 1, 1).bit_length() >> 2))


def prefill_width(length: int) -> int:
    """Padded width of a prompt: 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, ..."""
    return _rounded(length, 16)


def slab_length(length: int) -> int:
    """Positions that decode reads for a longest row of `length`: 64, 128, 192, 256, 384, 512, 768, ..."""
    return _rounded(length, SPAN)


def spans(length: int) -> list[tuple[int, int]]:
    """The spans up to `slab_length(length)`, in order."""
    found = [(0, SPAN)]
    while found[-1][1] < length:
        start = found[-1][1]
        found.append((start, slab_length(start + 1)))
    return found


class TiledLinear(nn.Linear):
    """y = x Wᵀ + b, one product of [TILE, in_features] at a time."""

    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, self.in_features)
        count, full = len(rows), filled_up(len(rows))
        if count < full:
            rows = torch.cat([rows, rows.new_zeros(full - count, self.in_features)])
        weight = self.weight.t().expand(full // TILE, -1, -1)
        out = torch.bmm(rows.view(-1, TILE, self.in_features), weight).view(full, self.out_features)[:count]
        out = out if self.bias is None else out + self.bias
        return out.view(*input.shape[:-1], self.out_features)


def tile_linears(model: Any) -> None:
    """Make every linear layer of a model a tiled one, its parameters as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = TiledLinear


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ + mask) v [N, Q, D] of query [N, Q, D], key and value [N, L, D], mask [N, 1, L] (0, -inf), L a `slab_length`."""
    weights = torch.bmm(query, key.transpose(1, 2)).add_(mask).softmax(-1)
    parts = (torch.bmm(weights[..., a:b], value[:, a:b]) for a, b in spans(key.shape[1]))
    return reduce(Tensor.add_, parts)
