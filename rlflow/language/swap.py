"""`plan.replace("grpo", rloo)`: may this function stand where that operator stood, and with which arguments?

A replacement is bound by parameter name. It may be an operator, a partial of one, or a plain function of operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from . import source
from .diagnostic import Diagnostic
from .operator import Declaration, declaration_of
from .record import Record, labels, names_of
from .source import Place
from .worker import Worker


class Replacement(NamedTuple):
    declaration: Declaration | None  # None: a plain function, to be traced through
    arguments: dict[str, Any]


def replacement(old: Declaration, other: Callable[..., Any], bound: dict[str, Any], at: Place) -> tuple[Replacement, list[Diagnostic]]:
    """`other` with what the call gives, and why it cannot be (empty when it can)."""
    given, fn = dict(bound), other
    if isinstance(other, partial):
        given, fn = given | other.keywords, other.func
    new = declaration_of(fn)
    signature = new.signature if new else inspect.signature(fn)
    asked = [n for n, p in signature.parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [n for n in asked if n not in given and not (n == "self" and new and isinstance(given.get("self"), Worker))]
    found = [_missing(old, new, fn, name, bound, at) for name in missing]
    if new is not None:
        found += _result(old, new, at)
    return Replacement(new, {n: v for n, v in given.items() if n in signature.parameters}), found


def _missing(old: Declaration, new: Declaration | None, fn: Callable[..., Any], name: str, bound: dict[str, Any], at: Place) -> Diagnostic:
    title = fn.__name__
    gives = ", ".join(f"`{n}`" for n in bound if n != "self")
    if name == "self":
        return Diagnostic(
            code="RLF009",
            message=f"`{title}` cannot replace `{old.name}`: it is a method of a worker, and the call has none",
            where=at,
            help="replace it with a function",
        )
    here = source.parameter_ref(new.fn if new else inspect.unwrap(fn), name)
    return Diagnostic(
        code="RLF009",
        message=f"`{title}` cannot replace `{old.name}`: nothing gives its `{name}`",
        where=at,
        related=labels(here, "asked for here"),
        notes=(f"the call gives {gives}",),
        help=f"use a pipeline that makes `{name}`, or an operator that needs only what the call gives",
    )


def _result(old: Declaration, new: Declaration, at: Place) -> list[Diagnostic]:
    """What the pipeline goes on to read must be there."""
    before, after = old.hints.get("return"), new.hints.get("return")
    if not (isinstance(before, type) and issubclass(before, Record)):
        return []
    has = names_of(after) if isinstance(after, type) and issubclass(after, Record) else []
    lacking = [n for n in names_of(before) if n not in has]
    if not lacking:
        return []
    return [
        Diagnostic(
            code="RLF009",
            message=f"`{new.name}` cannot replace `{old.name}`: its result has no `{lacking[0]}`",
            where=at,
            related=labels(source.parameter_ref(new.fn, ""), "declared here"),
            help=f"let it return a `{before.__name__}`",
        )
    ]
