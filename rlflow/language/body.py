"""Has an operator or a loss a body, or is it a declaration only? What is declared can be checked, explained and drawn, but not run.
Does calling a function run it, or make a coroutine or a generator?

def compute_values(self, ...) -> Values: ...              a declaration, also with a docstring
def compute_values(self, ...) -> Values: raise NotImplementedError("in the engine")
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any, Literal

from . import source
from .diagnostic import Diagnostic

SILENT = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}  # of a function that returns None and does nothing


def has_body(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` does anything. One that is declared to return nothing does its work by doing nothing."""
    fn = inspect.unwrap(fn)
    if not inspect.isfunction(fn):
        return True  # builtins
    steps = [step for step in dis.get_instructions(fn) if step.opname != "CACHE"]
    if {step.opname for step in steps} <= SILENT:
        loaded = {step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")}
        return loaded != {None} or fn.__annotations__.get("return", ...) in (None, "None")
    return not (fn.__code__.co_names == ("NotImplementedError",) and steps[-1].opname == "RAISE_VARARGS")


def not_at_once(fn: Callable[..., Any], what: Literal["pipeline", "operator"]) -> Diagnostic | None:
    """RLF013 for a function whose body does not run when it is called: nothing of it would be traced, or computed."""
    plain = inspect.unwrap(fn)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        kind, help = "`async`", "write `def`"
    elif inspect.isgeneratorfunction(plain):
        kind, help = "a generator", "leave the `yield` out"
    else:
        return None
    where = source.declared_at(fn)
    message = f"{what} `{fn.__name__}` is {kind}: a call of it runs nothing"
    return Diagnostic(code="RLF013", message=message, where=where, label="declared here", help=help)


def place_of(fn: Callable[..., Any]) -> str:
    """`file.py:12`, where a function is written; its name where that cannot be told."""
    fn = inspect.unwrap(fn)
    return f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}" if inspect.isfunction(fn) else repr(fn)
