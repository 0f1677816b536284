"""From the trace, with its live objects, to the frozen graph."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..language import state
from ..language.config import NotConfig, to_config
from ..language.diagnostic import Diagnostic, shown
from ..language.dims import Dim, Fresh
from ..language.loss import Loss, forward_of, reads_of, rows_of
from ..language.operator import Declaration
from ..language.trace import Trace
from ..language.traced import TracedField, TracedNode, TracedUse, TracedWeights, TracedWorker, WeightsArgument
from .ir import Devices, Feedback, Field, Graph, LossUse, Node, Place, Result, Size, State, Use, WeightsUse, Worker
from .suppress import ignores


def freeze(trace: Trace, parameters: dict[str, Any]) -> tuple[Graph, list[Diagnostic]]:
    """The graph of a trace, and what could not be written down in it."""
    found: list[Diagnostic] = []
    workers = tuple(_worker(trace, w, found) for w in trace.workers)
    graph = Graph(
        name=trace.name,
        module=trace.module,
        parameters=parameters,
        devices=tuple(Devices(id=d.id, name=d.devices.name, count=d.count, at=d.call.place) for d in trace.devices),
        workers=workers,
        feedbacks=tuple(
            Feedback(
                id=f.id,
                name=f.feedback.name,
                init=f.init.writer.id if f.init.writer else 0,  # add_feedback refuses a feedback without a load
                owner=trace.adopt(f.init.owner, f.call),
                max_lag=f.feedback.max_lag,
                stale=f.feedback.stale,
                at=f.call.place,
                via=f.via,
                closes=tuple(_weights(trace, WeightsArgument("new", w, "next", call.place)) for w, call in f.closes),
            )
            for f in trace.feedbacks
        ),
        nodes=tuple(_node(trace, node, found) for node in trace.nodes),
        fields=tuple(_field(f) for f in trace.fields),
        ignores=ignores(trace),
        replaced=tuple(trace.replaced),
    )
    return graph, found


def _field(traced: TracedField) -> Field:
    return Field(
        id=traced.id, name=traced.name, node=traced.node.id, declared=traced.declared, source=traced.source.id if traced.source else None
    )


def _use(traced: TracedUse) -> Use:
    return Use(
        param=traced.param,
        field=traced.field.id,
        declared=traced.declared,
        read=traced.read,
        forward=traced.forward,
        at=traced.at,
        declaration=traced.declaration,
    )


def _weights(trace: Trace, given: WeightsArgument) -> WeightsUse:
    weights: TracedWeights = given.weights
    return WeightsUse(
        param=given.param,
        name=weights.name,
        reading=weights.reading,
        wanted=given.wanted,
        feedback=trace.feedback(weights.feedback).id if weights.feedback else None,
        owner=next(w.id for w in trace.workers if w.worker is weights.owner),
        writer=weights.writer.id if weights.writer else None,
        served_by=tuple(next(w.id for w in trace.workers if w.worker is served) for served in weights.served_by),
        at=given.at,
    )


def _node(trace: Trace, traced: TracedNode, found: list[Diagnostic]) -> Node:
    declaration = traced.declaration
    return Node(
        id=traced.id,
        name=traced.name,
        title=traced.title,
        operator=f"{declaration.fn.__module__}:{declaration.fn.__qualname__}" if declaration else None,
        per=declaration.per if declaration else "row",
        rows=declaration.rows if declaration else "keep",
        index=declaration.index if declaration else None,
        sizes={str(letter): _size(size) for letter, size in declaration.sizes.items()} if declaration else {},
        bound=_bound(declaration, traced.config) if declaration else {},
        bound_by={letter: name for name, letter in declaration.letters.items()} if declaration else {},
        least_group=declaration.least_group if declaration else 1,
        least_kept=declaration.least_kept if declaration else 0,
        serves=declaration.serves if declaration else None,
        corrects=declaration.corrects if declaration else (),
        copies=dict(declaration.copies) if declaration else {},
        sink=bool(declaration and declaration.sink),
        state=_state(declaration.state) if declaration else (),
        worker=next((w.id for w in trace.workers if w.worker is traced.worker), None),
        params=traced.config,
        records={name: _class_ref(cls) for name, cls in traced.records.items()},
        order=traced.order,
        uses=tuple(map(_use, traced.uses)),
        weights=tuple(_weights(trace, w) for w in traced.weights),
        losses=tuple(_loss(loss, traced.call.place, found) for loss in traced.losses),
        outs=tuple(out.id for out in traced.outs),
        result=_result(traced.result),
        target=traced.call.target,
        at=traced.call.place,
        via=traced.via,
        failed=traced.failed,
    )


def _state(declared: tuple[state.State, ...]) -> tuple[State, ...]:
    return tuple(State(name=s.name, bytes=Dim.of(s.bytes), in_checkpoint=s.in_checkpoint, trained=s.trained) for s in declared)


def _result(result: dict[str, Any]) -> Result:
    record = result.get("record")
    return Result(**{**result, "record": _class_ref(record) if record else None})


def _class_ref(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _size(size: Dim | Fresh) -> Size:
    return Size(at_most=size.at_most) if isinstance(size, Fresh) else Size(of=size)


def _bound(declaration: Declaration, config: dict[str, Any]) -> dict[str, int]:
    return {letter: config[name] for name, letter in declaration.letters.items() if type(config.get(name)) is int}


def _loss(loss: Loss[Any, Any], at: Place, found: list[Diagnostic]) -> LossUse:
    options: dict[str, Any] = {}
    for option in dataclasses.fields(loss):  # type: ignore[arg-type]
        try:
            options[option.name] = to_config(getattr(loss, option.name))
        except NotConfig as error:
            found.append(_not_config(option.name, type(loss).__name__, error, at))
    return LossUse(
        ref=_class_ref(type(loss)),
        options=options,
        rows=_class_ref(rows_of(loss)),
        reads=reads_of(loss),
        forward=forward_of(loss),
        denominator=loss.denominator,
        active=loss.active,
        corrects=loss.corrects,
    )


def _worker(trace: Trace, traced: TracedWorker, found: list[Diagnostic]) -> Worker:
    worker, options = traced.worker, dict[str, Any]()
    for name, value in worker.options.items():
        try:
            options[name] = to_config(value)
        except NotConfig as error:
            found.append(_not_config(name, type(worker).__name__, error, traced.call.place))
    return Worker(
        id=traced.id,
        name=worker.name,
        ref=_class_ref(type(worker)),
        options=options,
        dp_size=int(worker.dp_size),
        tp_size=worker.tp_size,
        pp_size=worker.pp_size,
        cp_size=worker.cp_size,
        replicas=worker.replicas,
        devices=trace.devices_of(traced),
        temperature=float(worker.temperature),
        state=_state(type(worker).state),
        top_p=float(worker.top_p),
        at=traced.call.place,
    )


def _not_config(name: str, owner: str, error: NotConfig, at: Place) -> Diagnostic:
    return Diagnostic(
        code="RLF010", message=f"`{name}` of `{owner}` is configuration: {error}", where=at, label="cannot be kept in the plan"
    )


def parameters_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The resolved parameters of a pipeline. A function is named only: the trace has already gone through it."""
    return {name: _parameter(value) for name, value in arguments.items()}


def _parameter(value: Any) -> Any:
    try:
        return to_config(value)
    except NotConfig:
        return (
            {"$ref": f"{value.__module__}:{value.__qualname__}"}
            if callable(value) and hasattr(value, "__qualname__")
            else {"$repr": shown(value)}
        )
