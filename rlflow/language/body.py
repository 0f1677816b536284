"""Has an operator or a loss a body, or is it a declaration only? What is declared can be checked, explained and drawn, but not run.

def compute_values(self, ...) -> Values: ...              a declaration, also with a docstring
def compute_values(self, ...) -> Values: raise NotImplementedError("in the engine")
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

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


def place_of(fn: Callable[..., Any]) -> str:
    """`file.py:12`, where a function is written; its name where that cannot be told."""
    fn = inspect.unwrap(fn)
    return f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}" if inspect.isfunction(fn) else repr(fn)
