"""RLF016: a count where another is asked for, or arithmetic on two that counts nothing; what is said, and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from . import source
from .diagnostic import Diagnostic, Label
from .source import Place, Ref
from .units import NAME_OF, RATIOS, Count


class Foreign(NamedTuple):
    """A count that is handed to something that counts in another unit."""

    name: str
    wanted: str
    given: Count


def foreign(units: Mapping[str, str], values: Mapping[str, Any]) -> list[Foreign]:
    """Which of the values are counts of another unit than their parameter's."""
    return [
        Foreign(name, wanted, given)
        for name, wanted in units.items()
        if isinstance(given := values.get(name), Count) and given.unit != wanted
    ]


def no_fit(found: Foreign, title: str, at: Place, declared: tuple[Label, ...]) -> Diagnostic:
    """RLF016 at an argument. declared: where the parameter says its unit."""
    unit = found.given.unit
    return Diagnostic(
        code="RLF016",
        message=f"`{found.name}` of `{title}` counts {found.wanted}, got {unit}",
        where=at,
        label=f"{int(found.given)} {unit}",
        related=(*declared, *_origin(found.given)),
        notes=_notes(unit, found.wanted),
        help=_way(unit, found.wanted) or f"give it a count of {found.wanted}; a plain number is taken as one",
    )


def no_count(one: Count, two: Count, sign: str, at: Place) -> Diagnostic:
    """RLF016 at an expression. sign: + - × or /."""
    if sign in "+-":
        message, help = f"{one.unit} {sign} {two.unit}: counts of two things do not add up", _way(one.unit, two.unit)
    elif sign == "×":
        message, help = f"{one.unit} × {two.unit}: nothing counts that", None
    else:
        message, help = f"{one.unit} divided by {two.unit}: nothing counts that", None
    return Diagnostic(
        code="RLF016",
        message=message,
        where=at,
        label=f"{int(one)} {one.unit} {sign} {int(two)} {two.unit}",
        related=tuple(label for label in (*_origin(one), *_origin(two)) if label.place != at),
        notes=_notes(one.unit, two.unit),
        help=help or _else(one.unit, two.unit, sign),
    )


def _else(one: str, two: str, sign: str) -> str:
    if _by_rows(one, two):
        return f"count trajectories: {'trajectories' if one == 'rows' else one} / {'trajectories' if two == 'rows' else two}"
    ratio = next((NAME_OF[pair] for pair in ((one, two), (two, one)) if pair in NAME_OF), None) if sign == "×" else None
    each = f'if one of them is so much a {ratio.rpartition(" ")[2]}, declare it as `count("{ratio}")`; ' if ratio else ""
    return f"{each}if one of them counts nothing here, say so: `int(...)`"


def _by_rows(one: str, two: str) -> str | None:
    """Prompts or trajectories, if the two are one of those and rows."""
    return next((of for of in ("prompts", "trajectories") if {one, two} == {"rows", of}), None)


def _origin(given: Count) -> tuple[Label, ...]:
    places = [(unit, source.locate(said) if isinstance(said, Ref) else said) for unit, said in dict.fromkeys(given.said)]
    return tuple(Label(place, f"counts {unit}") for unit, place in places if place)


def _notes(one: str, two: str) -> tuple[str, ...]:
    if of := _by_rows(one, two):
        return (f"how many rows the {of} yield only the run knows: a trajectory can have many leaf rows, and a filter drops some",)
    if {one, two} == {"ranks", "devices"}:
        return ("rows are cut by data-parallel ranks alone: all devices behind one of them hold the same rows",)
    return ()


def _way(one: str, two: str) -> str | None:
    """How a count of `one` becomes one of `two`."""
    if {one, two} == {"ranks", "devices"}:
        return "use `dp_size`, the data-parallel ranks" if two == "ranks" else "use `world_size`, all ranks"
    if (one, two) in NAME_OF:
        return f"divide the {one} by the {NAME_OF[one, two]}"
    if (two, one) in NAME_OF:
        return f"multiply the {one} by the {NAME_OF[two, one]}"
    if two in RATIOS and one == RATIOS[two][0]:
        return f"divide the {one} by the {RATIOS[two][1]}"
    if one in RATIOS and two == RATIOS[one][0]:
        return f"multiply the {one} by the {RATIOS[one][1]}"
    return None
