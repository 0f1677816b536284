"""Whitening: mean 0 and variance 1 over all trained tokens of the batch, whatever rows, ranks and pads they are cut into."""

from __future__ import annotations

import numpy as np

from rlflow import operator
from rlflow.data.dtypes import Array

from ..fields import Advantages, ResponseMask
from ..ragged import BLOCK, Tokens


@operator(per="batch", ragged=True)
def whiten(advantages: Advantages, response_mask: ResponseMask) -> Advantages:
    """(x - mean) / √(variance + 1e-8) over the trained tokens of the batch, variance as of a sample (n - 1); 0 outside the mask.

    Fewer than two trained tokens, or all equal: 0. Raises DataError for NaN or infinity inside the mask.

        0, 0 | 10, 10: mean 5, σ 5.7735, whitened -0.866025 twice, 0.866025 twice
    """
    tokens = Tokens.of(response_mask)
    return tokens.write(whitened(tokens.finite("advantages", advantages)))  # type: ignore[no-any-return]


def whitened(x: Array) -> Array:
    """f32[tokens] of numbers [tokens]; statistics in float64, block by block."""
    out = np.zeros(len(x), np.float32)
    if len(x) < 2 or x.min() == x.max():
        return out
    mean = x.sum(dtype=np.float64) / len(x)
    spans = [slice(start, start + BLOCK) for start in range(0, len(x), BLOCK)]
    squares = sum(float(np.dot(centred, centred)) for centred in (x[span].astype(np.float64) - mean for span in spans))
    scale = 1 / np.sqrt(squares / (len(x) - 1) + 1e-8)
    for span in spans:
        out[span] = (x[span].astype(np.float64) - mean) * scale
    return out
