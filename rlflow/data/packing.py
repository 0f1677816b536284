"""Micro-batches of one rank: rows under a budget of tokens. `rowplan.pack_index` makes them equally many on all ranks.

lengths [9, 4, 3, 3], budget 12    padded: rows x longest    [9] [4, 3, 3]
                                   exact: sum of lengths     [9, 3] [4, 3]
"""

from __future__ import annotations

import heapq

import numpy as np

from .dtypes import Array


def cost(rows: Array, lengths: Array, padded: bool) -> int:
    """Tokens that a micro-batch takes: rows x longest, or the sum of its lengths."""
    return int(len(rows) * lengths[rows].max() if padded else lengths[rows].sum())


def pack(lengths: Array, budget: int, padded: bool) -> list[Array]:
    """int64 indices of each micro-batch, none above the budget but single rows that are longer."""
    order = np.argsort(-lengths, kind="stable")
    return _pack_padded(order, lengths, budget) if padded else _first_fit(order, lengths, budget)


def _pack_padded(order: Array, lengths: Array, budget: int) -> list[Array]:
    """Longest first, each micro-batch as many rows as its longest allows: no cut of rows x longest needs fewer."""
    out, start = [], 0
    while start < len(order):
        stop = start + max(1, budget // max(1, int(lengths[order[start]])))
        out.append(order[start:stop])
        start = stop
    return out


def _first_fit(order: Array, lengths: Array, budget: int) -> list[Array]:
    """First fit decreasing: at most 11/9 of the fewest possible, plus one (Johnson 1973; Dosa 2007)."""
    loads = np.zeros(len(order), np.int64)
    bins: list[list[int]] = []
    for row in order.tolist():
        size = int(lengths[row])
        fits = np.flatnonzero(loads[: len(bins)] + size <= budget)
        i = int(fits[0]) if len(fits) else len(bins)
        if i == len(bins):
            bins.append([])
        bins[i].append(row)
        loads[i] += size
    return [np.array(rows, np.int64) for rows in bins]


def spread(lengths: Array, budget: int, count: int) -> list[Array]:
    """As pack for padded rows, but under the smallest budget that still needs at most `count`: so that micro-batches weigh alike."""
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(pack(lengths, middle, True)) <= count:
            high = middle
        else:
            low = middle + 1
    return pack(lengths, high, True)


def split(micros: list[Array], lengths: Array, count: int, padded: bool) -> list[Array]:
    """Halve the costliest micro-batch of two rows or more until there are `count` (<= rows); costliest first."""
    whole = [_ranked(rows, i, lengths, padded) for i, rows in enumerate(micros)]
    single = [item for item in whole if len(item[2]) == 1]
    whole = [item for item in whole if len(item[2]) > 1]
    heapq.heapify(whole)
    serial = len(micros)
    while len(whole) + len(single) < count:
        for half in _halves(heapq.heappop(whole)[2], padded):
            item = _ranked(half, serial := serial + 1, lengths, padded)
            if len(half) == 1:
                single.append(item)
            else:
                heapq.heappush(whole, item)
    return [rows for _, _, rows in sorted(whole + single, key=lambda item: item[:2])]


def _ranked(rows: Array, serial: int, lengths: Array, padded: bool) -> tuple[int, int, Array]:
    return -cost(rows, lengths, padded), serial, rows


def _halves(rows: Array, padded: bool) -> tuple[Array, Array]:
    """Rows stand longest first: where padding counts the long ones stay together, else they are dealt out."""
    middle = len(rows) // 2
    return (rows[:middle], rows[middle:]) if padded else (rows[::2], rows[1::2])
