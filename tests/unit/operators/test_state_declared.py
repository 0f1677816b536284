"""C8: what an operator of the catalogue keeps across calls is declared. Read off the code of operators/, helpers included.

operator ──calls──▶ helper ──calls──▶ ... writes a global, or goes on where it stopped?  then the operator says so: state=(State(...),)
method of a worker ──assigns──▶ self.name                                                 then its class says so, or it is named below
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, ModuleType
from typing import Any

import pytest

import operators
from rlflow import Worker
from rlflow.language.keeps import kept_by
from rlflow.language.operator import declaration_of

MODULES: list[ModuleType] = [importlib.import_module(f"operators.{module.name}") for module in pkgutil.iter_modules(operators.__path__)]

# Functions that keep something which no call's result depends on: processes that are started once and used again.
REUSED = {
    "operators.judging_pool:pool_of": "judging processes, by verifier",
    "operators.judging_pool:discard": "takes one of them out",
    "operators.judging_pool:_close_all": "ends them",
    "operators.judging_pool:_start": "the verifier of a judging process, for its life",
    "operators.lanes:_begin": "the lane of a process, for its life",
}
# Attributes that a worker's methods set and that are no state of the loop.
PASSING = {"measured": "numbers of the last call", "_client": "a connection", "tokenizer": "as loaded", "context": "as loaded"}
STATE_OF = {"_published": "published", "engine": "weights"}  # attribute → the state that it holds


def functions(owner: Any, module: ModuleType) -> Iterator[Callable[..., Any]]:
    """The plain functions of a module, those of its classes too; behind an operator its body."""
    for value in vars(owner).values():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from functions(value, module)
        elif inspect.isfunction(value) and value.__module__ == module.__name__:
            yield inspect.unwrap(value)


def ref(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}:{fn.__qualname__}"


@cache
def by_name() -> dict[str, list[Callable[..., Any]]]:
    """Every function of the package under its bare name: a method is called by that."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for module in MODULES:
        for fn in functions(module, module):
            found.setdefault(fn.__name__, []).append(fn)
    return found


def names(code: CodeType) -> set[str]:
    return {*code.co_names, *(name for inner in code.co_consts if isinstance(inner, CodeType) for name in names(inner))}


def reached(fn: Callable[..., Any]) -> set[Callable[..., Any]]:
    """What a function may call inside operators/, itself included: whatever bears a name that its code mentions."""
    found, todo = set[Callable[..., Any]](), [fn]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += [other for name in names(one.__code__) for other in by_name().get(name, [])]
    return found


def keeping(fn: Callable[..., Any]) -> list[str]:
    """Functions below `fn` that keep something. A generator that is used up within the call keeps nothing."""
    return sorted(ref(one) for one in reached(fn) if (kept := kept_by(one)) and "generator" not in kept and ref(one) not in REUSED)


def declared() -> list[Any]:
    found = []
    for module in MODULES:
        owners = [module, *(cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__)]
        for owner in owners:
            found += [value for value in vars(owner).values() if inspect.isfunction(value) and value.__module__ == module.__name__]
    return [fn for fn in found if declaration_of(fn) is not None]


@pytest.mark.parametrize("fn", declared(), ids=ref)
def test_C8_an_operator_declares_what_it_keeps(fn: Callable[..., Any]) -> None:
    declaration = declaration_of(fn)
    assert declaration is not None
    below = keeping(inspect.unwrap(fn))
    assert bool(below) <= bool(declaration.state), f"{ref(fn)} reaches {below}"


def test_the_rewards_are_found_to_keep_something() -> None:
    from operators.reward import integer_match, shape_rewards

    assert keeping(inspect.unwrap(integer_match)) == ["operators.reward:_report"]
    assert keeping(inspect.unwrap(shape_rewards)) == []


def test_what_is_named_as_reused_is_still_there() -> None:
    assert {ref(fn) for fns in by_name().values() for fn in fns} >= REUSED.keys()


def set_by_methods(cls: type) -> set[str]:
    """Attributes of self that a method sets after the worker was made."""
    tree = ast.parse(inspect.getsource(importlib.import_module(cls.__module__)))
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    found: set[str] = set()
    for method in (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name != "__init__"):
        stored = (n for n in ast.walk(method) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
        found |= {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}
    return found


WORKERS = [
    cls
    for module in MODULES
    for cls in vars(module).values()
    if inspect.isclass(cls) and issubclass(cls, Worker) and cls.__module__ == module.__name__
]


@pytest.mark.parametrize("cls", WORKERS, ids=lambda cls: cls.__name__)
def test_C8_a_worker_declares_what_its_methods_keep(cls: type[Worker]) -> None:
    kept = {attribute for base in cls.__mro__ if issubclass(base, Worker) and base is not Worker for attribute in set_by_methods(base)}
    states = {state.name for state in cls.state}
    assert {STATE_OF.get(attribute, attribute) for attribute in kept - PASSING.keys()} <= states


def test_the_position_in_a_data_set_is_declared() -> None:
    from operators.dataset import dataset

    declaration = declaration_of(dataset)
    assert declaration is not None
    assert [state.name for state in declaration.state] == ["position"]
