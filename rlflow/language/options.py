"""A parameter of a pipeline whose default is a frozen dataclass holds options: its fields are parameters of the pipeline like the others.

    @dataclass(frozen=True, kw_only=True)
    class Options:
        prompts: PromptCount = 32
        lr: float = 1e-3

    @pipeline
    def loop(options: Options = Options(lr=2e-3), clip: float = 0.2) -> None

    parameters, flags          prompts, lr, clip          lr is 2e-3 unless told: the default is that of this pipeline
    gathered                   {"prompts": 8, "clip": 0.1} ──▶ {"options": Options(prompts=8, lr=2e-3), "clip": 0.1}
    spread                     and back
    counted                    what counts something knows it, as a parameter or as a field

A loss is a frozen dataclass too, and a single value: it is named as one.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UsageError
from . import source
from .config import is_frozen_dataclass
from .loss import Loss
from .units import counting, units_of

Parameters = dict[str, inspect.Parameter]


def groups_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Parameter → its default, for those that hold options."""
    found = {name: p.default for name, p in inspect.signature(fn).parameters.items()}
    return {name: d for name, d in found.items() if is_frozen_dataclass(type(d)) and not isinstance(d, Loss)}


def flat_parameters(fn: Callable[..., Any]) -> Parameters:
    """All parameters, with resolved types; a field of options stands in the place of the parameter that holds it.

    Raises UsageError where two have one name.
    """
    hints, held = typing.get_type_hints(inspect.unwrap(fn), include_extras=True), groups_of(fn)
    found: Parameters = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        flat = _fields(held[name]) if name in held else {name: parameter.replace(annotation=hints.get(name, parameter.annotation))}
        if twice := sorted(found.keys() & flat.keys()):
            raise UsageError(f"`{fn.__name__}` has two parameters `{twice[0]}`, one of them in its `{name}`: rename one of the two")
        found |= flat
    return found


def gathered(fn: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the function, of values by flat name; what is not given is as in the default."""
    held = groups_of(fn)
    fields = {name: {f: given[f] for f in _fields(default) if f in given} for name, default in held.items()}
    inside = {f for names in fields.values() for f in names}
    return {name: value for name, value in given.items() if name not in inside} | {
        name: dataclasses.replace(held[name], **told) for name, told in fields.items() if told
    }


def spread(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flat name, of the function's arguments."""
    held = groups_of(fn)
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        found |= {f: getattr(value, f) for f in _fields(value)} if name in held and dataclasses.is_dataclass(value) else {name: value}
    return found


def counted(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, each int that counts something as a Count."""
    units, held = units_of(fn), groups_of(fn)
    return {
        name: _counted_fields(value)
        if name in held and dataclasses.is_dataclass(value)
        else counting(value, units.get(name), source.parameter_ref(fn, name))
        for name, value in arguments.items()
    }


def _counted_fields(options: Any) -> Any:
    cls = type(options)
    counts = {name: counting(getattr(options, name), unit, source.attribute_ref(cls, name)) for name, unit in units_of(cls).items()}
    return dataclasses.replace(options, **counts)


def _fields(options: Any) -> Parameters:
    hints = typing.get_type_hints(type(options), include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return {
        f.name: inspect.Parameter(f.name, kind, default=getattr(options, f.name), annotation=hints[f.name])
        for f in dataclasses.fields(options)
        if f.init
    }
