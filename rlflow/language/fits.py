"""Does an option have a value of its type? A type checker sees it, the run would meet it in a worker's process, or not at all:
a misspelt word of a `Literal` takes the other branch.

Judged are int, float, bool, str and `Literal`, alone or in a union; of every other type any value is taken.
"""

from __future__ import annotations

import types
from typing import Any, Literal, get_args, get_origin

from .diagnostic import nearest, shown
from .spec import arms_of

# type → what Python itself takes for one: 1 for 1.0, True for 1
TAKEN: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def misfit(hint: Any, value: object) -> str | None:
    """`is int, got '3'`, or None where the value fits, or where that is not judged."""
    if hint is None:
        return None  # it has no type
    arms = arms_of(hint)
    if any(_fits(arm, value) for arm in arms):
        return None
    words = [word for arm in arms if get_origin(arm) is Literal for word in get_args(arm)]
    names = [repr(word) for word in words] + [arm.__name__ for arm in arms if isinstance(arm, type) and arm is not types.NoneType]
    near = nearest(value, [word for word in words if isinstance(word, str)]) if isinstance(value, str) else ""
    return f"is {' or '.join(names)}, got {shown(value)}{near}"


def _fits(arm: Any, value: object) -> bool:
    if get_origin(arm) is Literal:
        return any(type(word) is type(value) and word == value for word in get_args(arm))
    if arm is types.NoneType:
        return value is None
    return isinstance(value, TAKEN[arm]) if arm in TAKEN else True
