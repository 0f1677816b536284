"""Discounted suffix sums of many rows at once, without a loop over rows or tokens.

    y_t = x_t + c x_{t+1} + c² x_{t+2} + ...  to the end of the row

Rows are cut into chunks of 32 tokens. Within a chunk y is a product with a triangular matrix of powers of c; the first y of each chunk is
carried into the chunk before it, which is the same problem with 32 times fewer tokens and c³² for c, and so on until a row is one chunk.
A sum has no more terms than a loop's, and no row's numbers meet another's, so large numbers in one do not touch the digits of the next.
"""

from __future__ import annotations

import numpy as np

from rlflow.data.dtypes import Array

WIDTH = 32


def suffix_sums(x: Array, lengths: Array, discount: float) -> Array:
    """f64[tokens]. x: f64[tokens], the rows one after the other; lengths: i64[rows], Σ of which is the number of tokens."""
    if discount == 0 or not len(x):
        return x.copy()
    per_row = -(-lengths // WIDTH)
    inside = np.arange(WIDTH) < _sizes(lengths, per_row)[:, None]
    chunks = np.zeros(inside.shape)
    chunks[inside] = x
    sums = chunks @ _powers(discount)
    if per_row.max() > 1:
        carried = _carried(suffix_sums(sums[:, 0].copy(), per_row, discount**WIDTH), per_row)
        sums += carried[:, None] * discount ** np.arange(WIDTH, 0, -1)
    return np.asarray(sums[inside])


def _sizes(lengths: Array, per_row: Array) -> Array:
    """i64[chunks]: tokens in each, WIDTH but for the last of a row."""
    sizes = np.full(int(per_row.sum()), WIDTH)
    full = per_row > 0
    sizes[np.cumsum(per_row[full]) - 1] = (lengths - (per_row - 1) * WIDTH)[full]
    return sizes


def _carried(heads: Array, per_row: Array) -> Array:
    """f64[chunks]: the sum that begins with the next chunk; 0 for the last of a row."""
    carried = np.append(heads[1:], 0.0)
    carried[np.cumsum(per_row[per_row > 0]) - 1] = 0
    return carried


def _powers(discount: float) -> Array:
    """f64[WIDTH, WIDTH]: discount^(s - t) of what token s adds to token t ≤ s, else 0."""
    ahead = np.arange(WIDTH)[:, None] - np.arange(WIDTH)
    return np.where(ahead >= 0, discount ** np.maximum(ahead, 0), 0.0)
