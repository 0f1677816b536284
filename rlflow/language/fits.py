"""Does an option have a value of its type? A type checker sees it, the run would meet it in a worker's process, or not at all:
a misspelt word of a `Literal` takes the other branch.

Judged are int, float, bool, str, `Literal` and protocols by the names of their methods, alone or in a union; of every other type any
value is taken.
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
    if getattr(arm, "_is_protocol", False):
        return _behaves(arm, value)
    return isinstance(value, TAKEN[arm]) if arm in TAKEN else True


def _behaves(protocol: type, value: object) -> bool:
    """It has the methods, and is no class that would make such a thing."""
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    names = {name for base in bases for name in vars(base) if not name.startswith("_") or name == "__call__"}
    return (names <= {"__call__"} and callable(value)) or (not isinstance(value, type) and all(hasattr(value, name) for name in names))
