"""The seeded order of the data: which row the uid-th prompt of a run is. There is no cursor; the position is derived from the uids drawn.

    uid = epoch · size + position        row = permutation(seed, epoch)[position]

Example: size 3: uids 0 1 2 are the rows of epoch 0 in its order, uids 3 4 5 those of epoch 1 in another one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

__all__ = ["prompt_of"]


def prompt_of(uid: int, size: int, seed: int) -> tuple[int, int]:
    """``(epoch, row)`` of a prompt in a data set of ``size`` rows. Pure; raises ``DataError`` for an empty data set."""
    if size < 1:
        raise DataError(f"a data set of {size} rows has no prompt for uid {uid}: give one with at least one row")
    epoch, position = divmod(uid, size)
    return epoch, int(_permutation(size, seed, epoch)[position])


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Two epochs are kept: around the end of one, retried prompts of it and new ones of the next are asked for in turn."""
    return np.random.default_rng([seed, epoch]).permutation(size)
