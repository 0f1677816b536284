"""A call of an operator inside a pipeline: bind (or swap) → tracer.py, which makes one node of it."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from .hints import arguments_of
from .operator import Declaration
from .source import Call, Place
from .swap import replacement
from .trace import Trace
from .traced import Replaced, TracedNode
from .tracer import CallTracer
from .worker import Worker


def trace_call(current: Trace, declaration: Declaration, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Note the call of an operator, and return what stands for its result."""
    call, via = current.caller(frame)
    worker = args[0] if args and isinstance(args[0], Worker) and "self" in declaration.signature.parameters else None
    title = f"{worker.name}.{declaration.name}" if worker else declaration.name
    name = current.unique(title, call.target)
    try:
        bound = dict(declaration.signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        node = TracedNode(len(current.nodes), name, title, call, via, declaration, worker)
        tracer = CallTracer(current, node, declaration)
        tracer.refuse("RLF004", f"{error} in the call of `{title}`", help=f"`{title}({arguments_of(declaration.signature)})`")
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        tracer.mention(given)
        return tracer.run(tracer.mirrored(value for _, value in given))
    swap = current.swaps.get(name)
    if swap is None:
        return CallTracer(current, TracedNode(len(current.nodes), name, title, call, via, declaration, worker), declaration).run(bound)
    return _swapped(current, declaration, swap, bound, name, call, via)


def _swapped(
    current: Trace, old: Declaration, swap: Callable[..., Any], bound: dict[str, Any], name: str, call: Call, via: Place | None
) -> Any:
    """The same call with another function: bound by parameter name, so it may need fewer fields."""
    current.swapped.add(name)
    found, refused = replacement(old, swap, bound, call.place, current.fields)
    new, given = found.declaration, tuple(n for n in found.arguments if n in bound and n != "self")
    current.replaced.append(Replaced(call=name, by=found.title, given=given, upstream={n: field.id for n, field in found.upstream.items()}))
    if new is None and not refused:
        return swap(**found.arguments)  # a plain function of operators: traced through
    declaration = new or old
    worker = found.arguments.get("self")
    title = f"{worker.name}.{declaration.name}" if worker else declaration.name
    unique = current.unique(title, call.target) if title != name else name
    current.original[unique] = name
    node = TracedNode(len(current.nodes), unique, title, call, via, declaration, worker, failed=bool(refused))
    current.diagnostics += refused
    return CallTracer(current, node, declaration).run(found.arguments)
