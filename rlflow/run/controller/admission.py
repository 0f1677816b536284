"""Admission: a group may be registered only while there is a seat that it can still reach. This keeps the staleness bound possible.

    waiting + 1 ≤ (min(v + L, last) + 1 − b) · P   (+ s, if min(v + L, last) ≥ b)

v: published version, b: next batch to be formed. No counter of the past is in it: P = 8, L = 2, nothing waiting gives room for 24 groups at
v = b = 0 and for 24, not 824, in a run that is resumed at v = b = 100. With L = 0 the loop is synchronous by itself.
"""

from __future__ import annotations

__all__ = ["room"]


def room(*, waiting: int, published: int, next_batch: int, last: int, groups_per_batch: int, max_lag: int, oversample: int) -> int:
    """Groups that may be registered now; 0 or less: none."""
    last_reachable = min(published + max_lag, last)
    seats = (last_reachable + 1 - next_batch) * groups_per_batch
    return seats + (oversample if last_reachable >= next_batch else 0) - waiting
