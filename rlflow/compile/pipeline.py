"""`@pipeline`: trace the function once, freeze the graph, run the passes, hand back a Plan.

function ──trace──▶ Trace ──freeze──▶ Graph ──CHECKS──▶ Facts ──PLANS──▶ Plan
                                        │
                                        └── everything that is wrong: CheckFailed
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ParamSpec

from msgspec import structs

from ..errors import UsageError
from ..language import trace
from ..language.body import not_at_once
from ..language.diagnostic import CALLED, CheckFailed, Diagnostic, Label, nearest
from ..language.options import counted, spread
from ..language.trace import Trace
from . import passes
from .facts import Facts
from .freeze import freeze, parameters_of
from .ir import Graph
from .passes import Pass
from .plan import Plan, Swaps
from .suppress import part
from .verify import verify, verify_graph

P = ParamSpec("P")


def pipeline(fn: Callable[P, None]) -> Callable[P, Plan]:
    """Make a function of operators a pipeline: calling it returns its Plan, or raises CheckFailed with all that is wrong.

    Raises UsageError where it is called inside another pipeline.
    """
    signature = inspect.signature(fn)
    if (refused := not_at_once(fn, "pipeline")) is not None:
        raise CheckFailed([refused])

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> Plan:
        if trace.current() is not None:
            raise UsageError(f"pipeline `{fn.__name__}` is called inside another pipeline: share the operators in a plain function")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()

        parameters = parameters_of(spread(fn, bound.arguments))
        bound.arguments = counted(fn, bound.arguments)

        def run() -> None:
            fn(*bound.args, **bound.kwargs)

        return _build(run, fn, parameters, {})

    call.__rlflow_pipeline__ = fn  # type: ignore[attr-defined]
    return call


def _build(run: Callable[[], None], fn: Callable[..., Any], parameters: dict[str, Any], swaps: Swaps) -> Plan:
    timings: dict[str, float] = {}
    start = perf_counter()
    traced = Trace(fn.__name__, fn.__module__, fn.__code__, swaps)
    try:
        trace.tracing(traced, run)
    except CheckFailed as stopped:  # a branch or a computation on a field: nothing after it can be traced
        timings["trace"] = (perf_counter() - start) * 1e3
        raise CheckFailed(_placed(traced, [*traced.diagnostics, *stopped.diagnostics]), timings_ms=timings) from None
    _check_swaps(traced, swaps)
    timings["trace"] = (perf_counter() - start) * 1e3
    start = perf_counter()
    graph, found = freeze(traced, parameters)
    timings["freeze"] = (perf_counter() - start) * 1e3
    facts = Facts()
    verify_graph(graph)
    told, suppressed = part(graph, [*traced.diagnostics, *found, *run_passes(passes.CHECKS, graph, facts, timings)])
    told, suppressed = _placed(traced, told), _placed(traced, suppressed)
    if any(d.severity == "error" for d in told):
        raise CheckFailed(told, suppressed, timings)
    run_passes(passes.PLANS, graph, facts, timings)
    plan = Plan(graph=graph, facts=facts, warnings=tuple(told), suppressed=tuple(suppressed), timings_ms=timings)
    vars(plan)["_rebuild"] = lambda new: _build(run, fn, parameters, {**swaps, **_original_names(traced, new)})
    return plan


def run_passes(chosen: Sequence[Pass], graph: Graph, facts: Facts, timings: dict[str, float]) -> list[Diagnostic]:
    """Passes in order, each timed, the tables verified after each."""
    found: list[Diagnostic] = []
    for one in chosen:
        start = perf_counter()
        found += one(graph, facts)
        timings[one.__name__] = (perf_counter() - start) * 1e3
        verify(graph, facts)
    return found


def _placed(traced: Trace, found: list[Diagnostic]) -> list[Diagnostic]:
    """In the order of the source, each once; a place in a helper gets the lines of the pipeline that called it."""
    return sorted((_with_caller(traced, d) for d in dict.fromkeys(found)), key=lambda d: d.where)


def _with_caller(traced: Trace, found: Diagnostic) -> Diagnostic:
    callers = traced.via.get((found.where.file, found.where.line), {})
    return structs.replace(found, related=(*found.related, *(Label(via, CALLED) for via in callers)))


def _original_names(traced: Trace, swaps: Swaps) -> Swaps:
    """A node that was swapped before is asked for by its new name, and swapped at its old one."""
    return {traced.original.get(name, name): other for name, other in swaps.items()}


def _check_swaps(traced: Trace, swaps: Swaps) -> None:
    names = [n.name for n in traced.nodes if n.declaration is not None]
    for name in swaps:
        if name not in traced.swapped:
            near = nearest(name, names)
            raise UsageError(f"`{traced.name}` has no call named `{name}`{near}\n  its calls: {', '.join(names)}")
