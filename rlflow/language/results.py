"""What a call yields: values that stand for its fields, a record of them, or weights.

-> Alias          one field                 -> RowsT, Micro[RowsT]     the record that it was given, on other rows
-> a record       one field each            -> Next[W]                 weights, with who they are served by
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from . import source, trace
from .diagnostic import CheckFailed, Diagnostic, shown
from .feedback import READINGS, model_of
from .loss import Micro
from .record import Record, labels, names_of, specs_of, values_of
from .spec import Spec
from .trace import Value, WeightsValue
from .traced import TracedWeights
from .worker import Worker

if TYPE_CHECKING:
    from .tracer import CallTracer


def result_of(call: CallTracer, bound: dict[str, Any]) -> Any:
    """Notes the form of the result on the node."""
    hint, spec = call.declaration.hints.get("return"), call.declaration.specs.get("return")
    if spec is not None:
        call.node.result = {"kind": "field"}
        return call.trace.add_field(call.node.call.target or call.declaration.name, call.node, spec)
    origin = get_origin(hint) or hint
    if isinstance(hint, TypeVar):
        return _mirror(call, hint, bound, "rows")
    if origin is Micro:
        return Micro(_mirror(call, get_args(hint)[0], bound, "micro"))
    if origin in READINGS:
        return _next_weights(call, READINGS[origin], bound)
    if isinstance(hint, type) and issubclass(hint, Record):
        return _new_record(call, hint)
    call.node.result = {"kind": "none" if hint in (None, type(None)) else "data"}
    return None if call.declaration.sink or hint is type(None) else _without_type(call, hint)


def _without_type(call: CallTracer, hint: Any) -> Value:
    """Whoever reads it would be told that it is no field: the mistake is where it is declared."""
    fn = call.declaration.fn
    several = get_origin(hint) is tuple
    call.refuse(
        "RLF002",
        f"the result of `{call.node.title}` has no field type",
        related=labels(source.parameter_ref(fn, "return")),
        help="hand on a `Record` with a field for each"
        if several
        else "annotate it with an alias that has dtype and shape, or with a record",
    )
    if several:
        raise CheckFailed([])  # it may be taken apart
    return call.trace.add_field(call.node.call.target or call.declaration.name, call.node, None)


def _new_record(call: CallTracer, cls: type[Record]) -> Record:
    call.node.result = {"kind": "record", "record": cls}
    record, specs = object.__new__(cls), specs_of(cls)
    _copies(call, specs)
    for name in names_of(cls):
        if name not in specs:
            call.refuse(
                "RLF002",
                f"`{name}` of `{cls.__name__}`, the result of `{call.node.title}`, has no field type",
                related=labels(source.attribute_ref(cls, name)),
                help="annotate it with an alias that has dtype and shape",
            )
        object.__setattr__(record, name, call.trace.add_field(name, call.node, specs.get(name)))
    return record


def _same(one: Spec, two: Spec) -> bool:
    return one.dtype == two.dtype and (two.role is None or two.role.accepts(one.role))


def _copies(call: CallTracer, results: dict[str, Spec]) -> None:
    if call.node.failed:
        return  # an argument that was refused may be the one that is copied
    given = {use.param: use.declared for use in call.node.uses}
    for name, param in call.declaration.copies.items():
        if name in results and param in given and (of := given[param]) and _same(of, results[name]):
            continue
        same = "" if name not in results or param not in given else ", which is of another dtype or role"
        call.refuse(
            "RLF013",
            f"`{call.declaration.name}` copies `{param}` to `{name}`{same}; its result has {', '.join(results)}",
            related=labels(source.parameter_ref(call.declaration.fn, "")),
            help='write copies={"field of the result": "parameter"}, or "parameter.field" for a record',
        )


def _mirror(call: CallTracer, variable: TypeVar, bound: dict[str, Any], kind: str) -> Any:
    """`-> RowsT`: the same record with the same fields, on other rows."""
    param = next((n for n, h in call.declaration.hints.items() if h is variable and n != "return"), None)
    given = bound.get(param or "")
    if param is None or not isinstance(given, Record):
        if not call.node.failed:
            call.refuse("RLF005", f"`{param}` of `{call.node.title}` is a record, got {shown(given)}")
        raise CheckFailed([])  # told already; nothing after it can be traced
    if call.declaration.rows == "keep":
        _not_its_own(call, param)
    call.node.result = {"kind": kind, "record": type(given), "param": param}
    record = object.__new__(type(given))
    for name, value in values_of(given).items():
        if isinstance(value, Value):
            value = call.trace.add_field(name, call.node, None, trace.field_of(value))
        object.__setattr__(record, name, value)
    return record


def _not_its_own(call: CallTracer, param: str) -> None:
    name = call.declaration.name
    call.refuse(
        "RLF013",
        f'`{name}` hands back all of `{param}`, fields of others included, and has rows="keep"',
        related=labels(source.parameter_ref(call.declaration.fn, "")),
        notes=("each field has one writer: with two, a reader gets the one that came last",),
        help='return the fields that it makes, or say what it does to the rows: `@operator(..., rows="filter")`',
    )


def _next_weights(call: CallTracer, reading: str, bound: dict[str, Any]) -> WeightsValue:
    node = call.node
    node.result = {"kind": "weights", "reading": reading}
    given = [w.weights for w in node.weights]
    owner = next((w.owner for w in given), node.worker)
    if owner is None and node.failed:
        raise CheckFailed([])  # told already: the weights may be among the arguments that were refused
    if owner is None:
        raise CheckFailed(
            [
                Diagnostic(
                    code="RLF013",
                    message=f"`{node.title}` yields weights but belongs to no worker",
                    where=node.call.place,
                    help="make it a method of the worker that holds them",
                )
            ]
        )
    feedback = next((w.feedback for w in given if w.feedback), None)
    served = tuple(w for weights in given for w in weights.served_by)
    if call.declaration.serves and isinstance(bound.get(call.declaration.serves), Worker):
        served += (bound[call.declaration.serves],)
    model = model_of(call.declaration.hints["return"]) or next((w.model for w in given), None)  # `Next[W]`: that of what it is given
    return WeightsValue(TracedWeights(node.call.target or node.title, reading, owner, feedback, node, served, model))
