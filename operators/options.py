"""Options of operators and losses that are numbers: one outside of its range is refused where it is given, not in what it makes of a batch.

within("gae", 0, 1, gamma=1.5)              UsageError: gae: gamma is 1.5; give a number from 0 to 1
within("ppo_clip", 0, inf, clip_low=-0.2)   UsageError: ppo_clip: clip_low is -0.2; give a number from 0 up
above("sapo", 0, tau_pos=0.0)               UsageError: sapo: tau_pos is 0.0; give a number above 0
finite("opd", coef=nan)                     UsageError: opd: coef is nan; give a finite number
"""

from __future__ import annotations

import math
from numbers import Real

from rlflow.errors import UsageError

__all__ = ["above", "finite", "within"]


def within(of: str, low: float, high: float, /, **options: float) -> None:
    """Raise UsageError for an option of `of` that is no number from low to high, both included (`math.inf`: no upper bound)."""
    for name, value in options.items():
        if not (_is_number(value) and low <= value <= high):  # NaN is neither
            _refuse(of, name, value, f"a number from {low:g} to {high:g}" if high < math.inf else f"a number from {low:g} up")


def above(of: str, low: float, /, **options: float) -> None:
    """Raise UsageError for an option of `of` that is no number above low."""
    for name, value in options.items():
        if not (_is_number(value) and value > low):
            _refuse(of, name, value, f"a number above {low:g}")


def finite(of: str, /, **options: float) -> None:
    """Raise UsageError for an option of `of` that is no finite number."""
    for name, value in options.items():
        if not (_is_number(value) and math.isfinite(value)):
            _refuse(of, name, value, "a finite number")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _refuse(of: str, name: str, value: object, wanted: str) -> None:
    raise UsageError(f"{of}: {name} is {value!r}; give {wanted}")
