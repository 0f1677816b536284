"""Configuration values as JSON, and back: what a plan keeps so that another process can rebuild them.

int, finite float, str, bool, None, list, dict          as they are (a count as an int)
tuple                                                   {"$tuple": [...]}
inf, nan                                                {"$float": "inf"}
frozen dataclass                                        {"$data": "module:Class", field: value, ...}
function, class                                         {"$ref": "module:qualname"}
functools.partial                                       {"$partial": "module:qualname", "args": [...], "kwargs": {...}}
a worker of the pipeline                                {"$worker": id}
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..errors import UsageError
from .diagnostic import shown
from .units import Count
from .worker import Worker

PLAIN = "int, float, str, bool, None, a list, tuple or dict of those, a frozen dataclass, or a function or class of a module"


class NotConfig(UsageError):
    """A value that another process could not rebuild."""


def ref_of(obj: Any) -> str:
    """`module:qualname` of a function or class. Raises NotConfig when that name does not lead back to it."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not module or not name or "<" in name:
        raise NotConfig(f"{shown(obj)} has no name that another process can import: define it at the top of a module")
    return f"{module}:{name}"


def resolve(ref: str) -> Any:
    """The function or class named `module:qualname`. Raises UsageError when there is none."""
    module, _, name = ref.partition(":")
    if "<" in name:
        raise UsageError(
            f"`{name}` of {module} is defined inside a function, so no other process can import it: move it to the top of the module"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot find `{name}` in module `{module}`: {error}") from error
    return found


def to_config(value: Any, worker_id: Callable[[Worker], int] | None = None) -> Any:
    """`value` as JSON-able data. Raises NotConfig, naming the value, when it is none of the kinds above."""
    again = partial(to_config, worker_id=worker_id)
    match value:
        case None | bool() | int() | str() if type(value) in (type(None), bool, int, str):
            return value
        case Count():
            return int(value)
        case float() if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        case list() if type(value) is list:
            return [again(v) for v in value]
        case tuple() if type(value) is tuple:
            return {"$tuple": [again(v) for v in value]}
        case dict() if type(value) is dict:
            return _dict(value, again)
        case partial():
            return {"$partial": ref_of(value.func), "args": [again(a) for a in value.args], "kwargs": _dict(value.keywords, again)}
        case Worker() if worker_id is not None:
            return {"$worker": worker_id(value)}
        case type() | types.FunctionType() | types.BuiltinFunctionType():
            return {"$ref": ref_of(value)}
        case _ if is_frozen_dataclass(type(value)):
            fields = {f.name: again(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
            return {"$data": ref_of(type(value)), **fields}
        case _:
            raise NotConfig(f"an object of class {type(value).__qualname__} is not plain data: use {PLAIN}")


def is_frozen_dataclass(cls: Any) -> bool:
    """Whether its objects are plain data: their fields are what they are."""
    return dataclasses.is_dataclass(cls) and bool(cls.__dataclass_params__.frozen)  # type: ignore[union-attr]  # no public name for it


def _dict(value: Mapping[Any, Any], again: Callable[[Any], Any]) -> dict[str, Any]:
    for key in value:
        if type(key) is not str or key.startswith("$"):
            raise NotConfig(f"{key!r} cannot be a key: use strings that do not start with '$'")
    return {k: again(v) for k, v in value.items()}


def from_config(config: Any, workers: Mapping[int, Worker] | None = None) -> Any:
    """The value that `to_config` wrote down. `workers`: the worker objects of this process, by id."""
    again = partial(from_config, workers=workers)
    if isinstance(config, list):
        return [again(v) for v in config]
    if not isinstance(config, dict):
        return config
    given: dict[str, Any] = config
    match next(iter(given), ""):
        case "$tuple":
            return tuple(again(v) for v in given["$tuple"])
        case "$float":
            return float(given["$float"])
        case "$ref":
            return resolve(given["$ref"])
        case "$partial":
            return partial(resolve(given["$partial"]), *again(given["args"]), **again(given["kwargs"]))
        case "$worker":
            return (workers or {})[given["$worker"]]
        case "$data":
            return resolve(given["$data"])(**{k: again(v) for k, v in given.items() if k != "$data"})
        case _:
            return {k: again(v) for k, v in given.items()}
