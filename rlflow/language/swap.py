"""`plan.replace("grpo", rloo)`: may this function stand where that operator stood, and with which arguments?

A replacement is an operator, a partial of one, or a plain function of operators. Each parameter is bound by name:

    to an argument of the call that it replaces
    else to the latest earlier field of that name on the same rows     version_tag of form_batch, when the call is given its uid
    else to its default; without one the replacement is refused
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from . import source
from .diagnostic import Diagnostic, nearest
from .loss import Micro, Objective
from .operator import Declaration, declaration_of
from .record import Record, labels, names_of, values_of
from .source import Place
from .trace import Value, field_of
from .traced import TracedField


class Replacement(NamedTuple):
    declaration: Declaration | None  # None: a plain function, to be traced through
    title: str
    arguments: dict[str, Any]
    upstream: dict[str, TracedField]  # those of the arguments that the call does not give


def replacement(
    old: Declaration, other: Callable[..., Any], bound: dict[str, Any], at: Place, fields: Sequence[TracedField]
) -> tuple[Replacement, list[Diagnostic]]:
    """`other` with what it is bound to, and why it cannot be (empty when it can). fields: all that were made before the call."""
    given, fn = dict(bound), other
    if isinstance(other, partial):
        given, fn = given | other.keywords, other.func
    new = declaration_of(fn)
    declared = new or Declaration(fn, per="row")
    open_ = [n for n, p in declared.signature.parameters.items() if n not in given and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    near = _on_the_same_rows(bound.values(), fields) if open_ else {}
    upstream = {n: near[n] for n in open_ if n in near and _takes_field(declared, n)}
    missing = [n for n in open_ if n not in upstream and _required(declared, n)]
    found = [_missing(old, declared, name, bound, upstream, near, at) for name in missing]
    if new is not None:
        found += _result(old, new, at)
    given |= {name: Value(field) for name, field in upstream.items()}
    arguments = {n: v for n, v in given.items() if n in declared.signature.parameters}
    return Replacement(new, declared.name, arguments, upstream), found


def _takes_field(declared: Declaration, name: str) -> bool:
    """It is declared as a field, or, of a plain function, as nothing."""
    return declared.specs.get(name) is not None or declared.signature.parameters[name].annotation is inspect.Parameter.empty


def _required(declared: Declaration, name: str) -> bool:
    return declared.signature.parameters[name].default is inspect.Parameter.empty


# --- the same rows -----------------------------------------------------------------------------------------------------------
def _on_the_same_rows(given: Iterable[Any], fields: Sequence[TracedField]) -> dict[str, TracedField]:
    """By name, the latest field about rows that one of the arguments is about."""
    numbers = row_sets(fields)
    wanted = {numbers[field_of(value).id] for argument in given for value in _fields(argument)}
    return {field.name: field for field in fields if numbers[field.id] in wanted}


def _fields(argument: Any) -> Iterator[Value]:
    record = argument.rows if isinstance(argument, Micro | Objective) else argument
    yield from (v for v in (values_of(record).values() if isinstance(record, Record) else [record]) if isinstance(v, Value))


def row_sets(fields: Sequence[TracedField]) -> dict[int, int]:
    """Field -> a number for its row set, from declarations alone: those of one number are about the same rows, in the same order.

    A result is about the rows of the argument with which it shares its first letter, else about new ones; what a row
    operator hands on is about new ones, the same for all that were about the same before.
    """
    numbers: dict[int, int] = {}
    known: dict[tuple[int, str], int] = {}
    for field in fields:  # what a field comes from was made before it
        before = _before(field)
        if before is not None and (field.source is None or field.node.declaration is None):
            numbers[field.id] = numbers[before.id]
            continue
        of = f"rows {numbers[before.id]}" if before is not None else _first_letter(field)
        numbers[field.id] = known.setdefault((field.node.id, of), len(known))
    return numbers


def _first_letter(field: TracedField) -> str:
    return str(field.declared.shape[0]) if field.declared and field.declared.shape else ""


def _before(field: TracedField) -> TracedField | None:
    """The field whose rows these are, or were before a row operator; None for new rows."""
    if field.source is not None or field.declared is None or not field.declared.shape:
        return field.source
    uses = ((use.field, use.declared) for use in field.node.uses)
    return next((given for given, spec in uses if spec and spec.shape and spec.shape[0] == field.declared.shape[0]), None)


# --- what does not fit -------------------------------------------------------------------------------------------------------
def _missing(
    old: Declaration,
    new: Declaration,
    name: str,
    bound: dict[str, Any],
    upstream: dict[str, TracedField],
    near: dict[str, TracedField],
    at: Place,
) -> Diagnostic:
    if name == "self":
        return Diagnostic(
            code="RLF009",
            message=f"`{new.name}` cannot replace `{old.name}`: it is a method of a worker, and the call has none",
            where=at,
            help="replace it with a function",
        )
    gives = ", ".join(f"`{n}`" for n in bound if n != "self")
    taken = [f"`{n}` is taken from `{field.node.name}`" for n, field in upstream.items()]
    taken += [f"no earlier field on the same rows is called `{name}`{nearest(name, near)}"] * _takes_field(new, name)
    return Diagnostic(
        code="RLF009",
        message=f"`{new.name}` cannot replace `{old.name}`: nothing gives its `{name}`",
        where=at,
        related=labels(source.parameter_ref(inspect.unwrap(new.fn), name), "asked for here"),
        notes=(f"the call gives {gives}", *taken),
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
