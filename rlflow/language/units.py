"""Counts that know what they count: prompts are not rows, and trajectories a prompt are neither.

    prompts: Annotated[int, count("prompts")]                 a parameter of a pipeline is a `Count` inside it
    group_size: Annotated[int, count("trajectories a prompt")]
    prompts * group_size                                      trajectories
    (prompts * group_size) // actor.dp_size                   trajectories a rank
    actor.dp_size * prompts                                   RLF016: nothing counts that

A `Count` is an int everywhere: to type checkers, in the plan, on the command line. A plain int fits every count. Only the pipeline's
own arithmetic is judged, and what it hands on. How many leaf rows a prompt or a trajectory yields only the run knows, so no unit
leads from one to the other. `count(...)` is a role too: a field of counts, one a row, says in its alias what it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from . import source, trace
from .diagnostic import nearest
from .hints import hints_of
from .source import Place, Ref
from .spec import Role, metadata_of

UNITS = ("prompts", "trajectories", "rows", "tokens", "ranks", "devices")  # ranks: data-parallel ones; devices: one for every rank there is
RATIOS = {  # "x a y": how many x one y has
    "trajectories a prompt": ("trajectories", "prompts"),
    "tokens a prompt": ("tokens", "prompts"),
    "tokens a trajectory": ("tokens", "trajectories"),
    "tokens a row": ("tokens", "rows"),
    "prompts a rank": ("prompts", "ranks"),
    "trajectories a rank": ("trajectories", "ranks"),
    "rows a rank": ("rows", "ranks"),
    "tokens a rank": ("tokens", "ranks"),
    "devices a rank": ("devices", "ranks"),
}
NAME_OF = {parts: name for name, parts in RATIOS.items()}
Origin = Place | Ref


def count(unit: str) -> Role:
    """Says what an integer parameter, or a field of integers, counts. Raises UsageError for a unit that is not in the table."""
    if unit not in UNITS and unit not in RATIOS:
        known = (*UNITS, *RATIOS)
        raise UsageError(f"count({unit!r}): there is no such unit{nearest(unit, known)}\n  there are {', '.join(known)}")
    return Role("count", unit)


def unit_of(hint: Any) -> str | None:
    """What a parameter of this type counts; None if it does not say."""
    return next((extra.detail for extra in metadata_of(hint) if isinstance(extra, Role) and extra.kind == "count"), None)


def units_of(fn: Callable[..., Any]) -> dict[str, str]:
    """Parameter → what it counts. Raises CheckFailed (RLF012) when a type in the signature does not exist at run time."""
    return {name: unit for name, hint in hints_of(fn).items() if (unit := unit_of(hint)) is not None}


# --- the algebra ------------------------------------------------------------------------------------------------------------------
class Unknown(Exception):
    """No unit for the result."""


def product(one: str, two: str) -> str | None:
    """Unit of a product; None for a number without one. Raises Unknown.

    prompts × trajectories a prompt = trajectories; ranks × ranks = ranks, a multiple of both.
    """
    return "ranks" if one == two == "ranks" else _named(_parts(one), _parts(two))


def quotient(one: str, two: str) -> str | None:
    """Unit of a quotient; None for a number without one. Raises Unknown. trajectories / prompts = trajectories a prompt."""
    over, under = _parts(two)
    return _named(_parts(one), (under, over))


_Parts = tuple[tuple[str, ...], tuple[str, ...]]  # units above and below the line


def _parts(unit: str) -> _Parts:
    if unit in RATIOS:
        over, under = RATIOS[unit]
        return (over,), (under,)
    return (unit,), ()


def _named(one: _Parts, two: _Parts) -> str | None:
    over, under = Counter(one[0] + two[0]), Counter(one[1] + two[1])
    up, down = [*(over - under).elements()], [*(under - over).elements()]
    if not up and not down:
        return None
    if len(up) == 1 and not down:
        return up[0]
    if len(up) == len(down) == 1 and (up[0], down[0]) in NAME_OF:
        return NAME_OF[up[0], down[0]]
    raise Unknown


# --- a count --------------------------------------------------------------------------------------------------------------------------
class Count(int):
    """An int that knows its unit, and the declarations that this comes from. Lives while a pipeline is traced; its int is what is kept."""

    unit: str
    said: tuple[tuple[str, Origin], ...]  # unit, and what said so; of both factors of a product

    def __new__(cls, value: int, unit: str, *said: tuple[str, Origin]) -> Count:
        made = super().__new__(cls, value)
        made.unit, made.said = unit, said
        return made

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __add__(self, other: int) -> int:
        return self._sum(other, int.__add__(self, other), "+")

    def __radd__(self, other: int) -> int:
        return self._sum(other, int.__radd__(self, other), "+")

    def __sub__(self, other: int) -> int:
        return self._sum(other, int.__sub__(self, other), "-")

    def __rsub__(self, other: int) -> int:
        return self._sum(other, int.__rsub__(self, other), "-")

    def __neg__(self) -> int:
        return Count(-int(self), self.unit, *self.said)

    def __mul__(self, other: int) -> int:
        return self._times(other, int.__mul__(self, other))

    def __rmul__(self, other: int) -> int:
        return self._times(other, int.__rmul__(self, other))

    def __floordiv__(self, other: int) -> int:
        return self._by(other, int.__floordiv__(self, other), quotient)

    def __truediv__(self, other: int) -> float:  # no unit is left in it, but rows / prompts is refused all the same
        self._by(other, 0, quotient)
        return int.__truediv__(self, other)

    def __mod__(self, other: int) -> int:
        return self._by(other, int.__mod__(self, other), _remainder)

    def __divmod__(self, other: int) -> tuple[int, int]:
        both: Any = int.__divmod__(self, other)
        return both if both is NotImplemented else (self // other, Count(both[1], self.unit, *self.said))

    # --- what the results are ----------------------------------------------------------------------------------------------------
    def _sum(self, other: object, value: int, sign: str) -> int:
        if isinstance(other, Count) and other.unit != self.unit:
            return self._refuse(other, value, sign)
        return self._plain_or(value, self.unit, other)

    def _times(self, other: object, value: int) -> int:
        try:
            return self._plain_or(value, product(self.unit, other.unit) if isinstance(other, Count) else self.unit, other)
        except Unknown:
            return self._refuse(other, value, "×")

    def _by(self, other: object, value: int, rule: Callable[[str, str], str | None]) -> int:
        try:
            return self._plain_or(value, rule(self.unit, other.unit) if isinstance(other, Count) else self.unit, other)
        except Unknown:
            return self._refuse(other, value, "/")

    def _plain_or(self, value: int, unit: str | None, other: object) -> int:
        """A Count of that unit; the value itself where it has none, or where `other` was no integer (a float, NotImplemented)."""
        if unit is None or type(value) is not int:
            return value
        return Count(value, unit, *self.said, *(other.said if isinstance(other, Count) else ()))

    def _refuse(self, other: object, value: int, sign: str) -> int:
        """Told once: the result is a plain int."""
        assert isinstance(other, Count)
        if (current := trace.current()) is not None:
            from .miscount import no_count

            found = no_count(self, other, sign, trace.here(source.outside(__file__)))
            current.diagnostics += [found] if found not in current.diagnostics else []  # an expression in a loop is one
        return value


def _remainder(one: str, two: str) -> str | None:
    quotient(one, two)
    return one


def counting(value: Any, unit: str | None, declared: Ref) -> Any:
    """An int as a Count of that unit; what is none, or counts nothing, as it is."""
    return Count(value, unit, (unit, declared)) if unit is not None and type(value) is int else value
