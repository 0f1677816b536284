"""What becomes of groups that are too slow for `max_lag`, when a batch is ready without them. The strictest first.

wait      the batch waits for them
drop      they are dropped
mask      they are trained later, and an operator hides their tokens of weights older than max_lag
correct   they are trained later, weighed like all that is off-policy
"""

from __future__ import annotations

from typing import Literal, get_args

Stale = Literal["wait", "drop", "mask", "correct"]
STALE: tuple[Stale, ...] = get_args(Stale)
