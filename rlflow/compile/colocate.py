"""Workers on the same devices take turns: who gives memory up, and who takes it, before which call.

    rollout (engine: weights, KV) → batch calls in the order of the pipeline → sync → next rollout
              │                          │                                      │
              │                          │                                      └ both hold weights; nobody holds optimizer or KV cache
              │                          └ the worker of the call alone: its weights, in training its optimizer too
              └ the engine alone

A call finds on the devices exactly what it needs; everything else was given up before it, first out, then in. What an engine gives up is
*released* where a sync brings new weights before it samples again, else *offloaded* to the host: after a wake it serves what the last
sync brought, never what happens to lie in memory. Calls that overlap in time can take no turns, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..language.diagnostic import Diagnostic, Label
from .facts import Facts, Shift
from .ir import Devices, Graph, Node, Worker

WEIGHTS, OPTIMIZER, KV = "weights", "optimizer", "kv_cache"
Part = tuple[int, str]  # worker, what of it


class Turn(NamedTuple):
    """A call, and what of which worker must be on the devices for it."""

    node: Node
    needs: frozenset[Part]
    fills: int | None = None  # a sync: the worker that gets new weights


def colocate(graph: Graph, facts: Facts) -> list[Diagnostic]:
    """Fills sleeps."""
    found: list[Diagnostic] = []
    sharing: dict[int, dict[int, Worker]] = {}
    for worker in graph.workers:
        if worker.devices is not None:
            sharing.setdefault(worker.devices, {})[worker.id] = worker
    calls = _calls(graph, facts)
    for devices, workers in ((graph.devices[i], workers) for i, workers in sorted(sharing.items()) if len(workers) > 1):
        stream, batch, syncs = _turns(facts, workers, calls.get(devices.id, []))
        refused = [*_two_on_the_stream(graph, devices, stream), *_samples_ahead(graph, devices, workers, stream, [*batch, *syncs])]
        found += refused
        if not refused:
            facts.sleeps += tuple(_shifts(devices, [*stream, *batch, *syncs]))
    return found


def _calls(graph: Graph, facts: Facts) -> dict[int, list[Node]]:
    """Devices → the calls of a step that need one of their workers."""
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.id in facts.needed and node.per != "run":
            workers = {node.worker, node.fills, *(use.owner for use in node.weights if node.serves)}
            for devices in {graph.workers[worker].devices for worker in workers if worker is not None}:
                if devices is not None:
                    found.setdefault(devices, []).append(node)
    return found


def _turns(facts: Facts, workers: dict[int, Worker], calls: list[Node]) -> tuple[list[Turn], list[Turn], list[Turn]]:
    """The calls of one step on these workers: on the stream, on the batch, syncs."""
    stream, batch, syncs = list[Turn](), list[Turn](), list[Turn]()
    for node in calls:
        if node.fills is not None:
            held = {node.fills, *(use.owner for use in node.weights[:1])} & workers.keys()
            syncs.append(Turn(node, frozenset((worker, WEIGHTS) for worker in held), node.fills if node.fills in held else None))
        elif node.worker in workers:
            assert node.worker is not None
            on_stream = facts.scope(node) == "stream"
            (stream if on_stream else batch).append(Turn(node, frozenset((node.worker, part) for part in _parts(node))))
    return stream, batch, syncs


def _parts(node: Node) -> tuple[str, ...]:
    readings = {w.reading for w in node.weights}
    if "served" in readings:
        return WEIGHTS, KV
    return (WEIGHTS, OPTIMIZER) if "move" in readings else (WEIGHTS,)


# --- the schedule ----------------------------------------------------------------------------------------------------------------
def _shifts(devices: Devices, turns: list[Turn]) -> Iterator[Shift]:
    """Of a step in the middle of a run: it finds on the devices what the step before left there."""
    held = turns[-1].needs if turns else frozenset[Part]()
    for at, turn in enumerate(turns):
        following = [*turns[at:], *turns[:at]]
        for worker, part in sorted(held - turn.needs):
            yield Shift(devices=devices.id, before=turn.node.id, worker=worker, part=part, action=_away(worker, part, following))
        for worker, part in sorted(turn.needs - held):
            kept = part != KV and turn.fills != worker
            yield Shift(devices=devices.id, before=turn.node.id, worker=worker, part=part, action="onload" if kept else "resume")
        held = turn.needs


def _away(worker: int, part: str, following: list[Turn]) -> str:
    """Thrown away where its next use makes it anew: a KV cache by sampling, weights by a sync."""
    again = next((turn for turn in following if (worker, part) in turn.needs), None)
    return "release" if part == KV or (again is not None and again.fills == worker) else "offload"


# --- what cannot take turns --------------------------------------------------------------------------------------------------------
def _two_on_the_stream(graph: Graph, devices: Devices, stream: list[Turn]) -> Iterator[Diagnostic]:
    """A row operator starts when its row has landed, while the engine samples the next rows."""
    first = next(iter(stream), None)
    other = next((turn for turn in stream if first is not None and turn.node.worker != first.node.worker), None)
    if first is None or other is None:
        return
    one, two = (graph.workers[turn.node.worker or 0] for turn in (first, other))
    yield _refused(
        devices,
        f"`{two.name}` and `{one.name}` must be awake at the same time, and share the devices `{devices.name}`",
        other.node,
        f"`{two.name}` works on rows as they land",
        (Label(first.node.at, f"while `{one.name}` makes the next ones"),),
        f"call `{other.node.title}` on the batch, after `form_batch`, or give `{two.name}` devices of its own: {_own(two, devices)}",
    )


def _samples_ahead(
    graph: Graph, devices: Devices, workers: dict[int, Worker], stream: list[Turn], later: list[Turn]
) -> Iterator[Diagnostic]:
    """With max_lag above 0 the engine samples the next batch while this one is scored and trained."""
    for engine in dict.fromkeys(turn.node.worker for turn in stream):
        lags = [graph.feedbacks[w.feedback] for t in stream if t.node.worker == engine for w in t.node.weights if w.feedback is not None]
        ahead = next((feedback for feedback in lags if feedback.max_lag), None)
        other = next((t for t in later if t.fills is None and t.node.worker not in (None, engine)), None)
        if engine is None or ahead is None or other is None or other.node.worker is None:
            continue
        one, two = workers[engine], workers[other.node.worker]
        yield _refused(
            devices,
            f"`{two.name}` and `{one.name}` must be awake at the same time, and share the devices `{devices.name}`",
            other.node,
            f"`{two.name}` works on a batch",
            (Label(ahead.at, f"with max_lag={ahead.max_lag} `{one.name}` samples the next batch meanwhile"),),
            f"`max_lag=0`, or give `{one.name}` devices of its own: {_own(one, devices)}",
        )


def _own(worker: Worker, devices: Devices) -> str:
    return f'`on=Devices("{worker.name}_{devices.name}", count={worker.world_size})`'


def _refused(devices: Devices, message: str, node: Node, label: str, related: tuple[Label, ...], help: str) -> Diagnostic:
    return Diagnostic(
        code="RLF402",
        message=message,
        where=node.at,
        label=label,
        related=(*related, Label(devices.at, "the devices of both")),
        notes=("workers on the same devices take turns: one sleeps, its memory given up, while another works",),
        help=help,
    )
