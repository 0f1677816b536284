"""`rlflow explain pipelines/grpo.py`: the views of a plan as text, 138 columns wide.

state       what lives across steps: to be counted on one hand
processes   which call runs where; row operators that the controller makes one plan of
workers     their ranks and devices; who gives memory up before which call, where they share devices
feedbacks   each back edge, its readings and who holds them
fields      by writer: type, role, rows, the versions it depends on, its readers, and after which of them it is freed
hops        what crosses from process to process in a step: columns, weights, the controller's messages
dropped     what is not computed, or never leaves its writer, and why
peak bytes  of the pool and of each process: polynomials, or numbers with --sizes
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec

from ..compile.place import CONTROLLER
from ..compile.plan import Plan
from ..compile.views import EdgeView, FieldView, StateView, Views
from .report import finding

WIDTH = 138
LARGEST = 4  # columns of a peak that are named
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
COLUMNS = (("field", 22), ("type", 19), ("role", 23), ("rows", 7), ("depends on", 23), ("read by", 42))  # and two in front


def explain(plan: Plan, sizes: Mapping[str, int] | None = None) -> str:
    """The views of a plan. x marks what is dropped: no later call, and no next step, depends on it.

    sizes: values of letters; peak bytes are then numbers. Raises UsageError for one that the plan does not have, or lacks.
    """
    sections = (_state, _processes, _workers, _shifts, _feedbacks, _fields, _hops, _dropped)
    parts = [_head(plan.views), *(line for section in sections for line in section(plan.views))]
    parts += _peaks(plan.views) if sizes is None else _peaks_for(plan, sizes)
    parts += [f"\n{warning}" for warning in plan.warnings]
    return "\n".join(line.rstrip() for line in parts)


def explain_json(plan: Plan, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The same as plain data, for `--json`: compile/views.py has the keys. sizes: as of `explain`, add `peak_bytes`."""
    data: dict[str, Any] = msgspec.to_builtins(plan.views)
    data["warnings"] = [msgspec.to_builtins(finding(warning)) for warning in plan.warnings]
    if sizes is not None:
        data["peak_bytes"] = [msgspec.to_builtins(peak) for peak in plan.peak(**sizes).values()]
    return data


def _head(seen: Views) -> str:
    counts = (
        (len(seen.operators), "call"),
        (len(seen.workers), "worker"),
        (len(seen.feedbacks), "feedback"),
        (len(seen.fields), "field"),
    )
    return f"{seen.pipeline} ({seen.module}): " + ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts)


def _state(seen: Views) -> list[str]:
    """One line an owner: what a checkpoint holds, then what is made anew."""
    owners: dict[str, list[StateView]] = {}
    for kept in seen.state:
        owners.setdefault(kept.owner, []).append(kept)
    out = ["", "state (all that lives across steps; bytes of one copy)"] if owners else []
    for owner, held in owners.items():
        saved, lost = ([f"{one.name} {one.bytes}" for one in held if one.in_checkpoint is kept] for kept in (True, False))
        parts = [f"in the checkpoint: {', '.join(saved)}"] * bool(saved) + [f"not in it: {', '.join(lost)}"] * bool(lost)
        out += _hanging(_front(owner), "; ".join(parts))
    return out


def _processes(seen: Views) -> list[str]:
    sites: dict[str, list[str]] = {}
    for call in seen.operators:
        sites.setdefault(call.worker, []).append(f"x {call.name}" if call.dropped else call.name)
    out = ["", "processes"]
    for site, calls in sites.items():
        plans = [f"{' → '.join(plan)} (one row plan)" for plan in seen.fused if len(plan) > 1] if site == CONTROLLER else []
        alone = [call for call in calls if not any(call in plan for plan in seen.fused if len(plan) > 1)]
        out += _hanging(_front(site), ", ".join([*alone, *plans]))
    return out


def _workers(seen: Views) -> list[str]:
    out = ["", "workers"] if seen.workers else []
    for worker in seen.workers:
        ranks = (("dp", worker.dp), ("tp", worker.tp), ("pp", worker.pp), ("cp", worker.cp), ("replicas", worker.replicas))
        sizes = " x ".join(f"{name} {size}" for name, size in ranks if size > 1) or "one rank"
        where = f"{worker.devices} {', '.join(map(str, worker.on))}" if worker.devices else "CPU"
        out += _hanging(_front(worker.name), f"{worker.kind}, {sizes}, on {where}")
    return out


def _shifts(seen: Views) -> list[str]:
    """Who sleeps and who wakes, before which call of the step."""
    by_call: dict[tuple[str, str], list[str]] = {}
    for shift in seen.shifts:
        by_call.setdefault((shift.devices, shift.before), []).append(f"{shift.action} {shift.worker}.{shift.part}")
    out = ["", "turns on shared devices"] if by_call else []
    for (devices, call), shifts in by_call.items():
        out += _hanging(_front(devices), f"before {call}: {', '.join(shifts)}")
    return out


def behind(gap: int, stale: str) -> str:
    """How far what is trained can be behind, and what that costs groups that are slow."""
    late = {"drop": ", slower groups are dropped", "mask": ", older tokens are masked"}.get(stale, "")
    if stale == "correct" and gap:
        return f"trained rows are {gap} behind, those of slower groups more"
    return f"trained rows are at most {gap} behind{late if gap else ''}"


def _feedbacks(seen: Views) -> list[str]:
    out = ["", "feedbacks"] if seen.feedbacks else []
    for row in seen.feedbacks:
        text = f"version k on {row.owner}, first from {row.init}; "
        text += "; ".join(f".{reading} in {', '.join(calls)}" for reading, calls in row.readers.items() if reading != "next")
        text += f"; k + 1 goes to {', '.join(row.served_by)}" if row.served_by else ""
        if row.in_flight:
            text += f"; {behind(row.worst_gap, row.stale)}, with up to {row.in_flight} trajectories in flight"
            text += f" and {row.queue} batch{'es' * (row.queue != 1)} ahead of the trainer" if row.queue else ""
        out += _hanging(_front(row.name), text)
    return out


def _fields(seen: Views) -> list[str]:
    heading = "  " + "".join(f"{title:<{width}}" for title, width in COLUMNS)
    out = ["", "fields", heading.rstrip(), "  " + "-" * (WIDTH - 2)]
    calls = {call.name: call for call in seen.operators}
    writer = None
    for row in seen.fields:
        if row.writer != writer:
            call = calls[row.writer]
            out.append(f"{'x' if call.dropped else ' '} {row.writer}   on {call.worker}, per {call.per}{', dropped' * call.dropped}")
            writer = row.writer
        out += _field(row)
    return out


def _field(row: FieldView) -> list[str]:
    cells = (f"  {row.name}", f"{row.dtype}[{', '.join(row.shape)}]", row.role or "-", row.scope, _versions(row))
    mark = "x" if row.dies is None else " "
    front = f"{mark} " + "".join(f"{cell:<{max(width, len(cell) + 1)}}" for cell, (_, width) in zip(cells, COLUMNS, strict=False))
    if row.dies is None:
        return [front + "nobody: dropped"]
    earlier = [name for name in row.readers if name != row.dies]
    return _hanging(front, ", ".join([*earlier, f"dies after {row.dies}"]))


def _versions(row: FieldView) -> str:
    """policy@current,served: each feedback once."""
    depends: dict[str, list[str]] = {}
    for version in row.version.split(", ") if row.version else ():
        feedback, _, reading = version.partition("@")
        depends.setdefault(feedback, []).append(reading)
    return " ".join(f"{name}@{','.join(readings)}" for name, readings in depends.items()) or "-"


def _hops(seen: Views) -> list[str]:
    out = ["", "hops of a step (a column that the receiver does not read stays where it was made)"]
    for edge in seen.edges:
        text = f"weights of {', '.join(edge.weights)}, version k + 1: {edge.bytes} bytes" if edge.weights else _columns(edge)
        out += _hanging(_front(f"{edge.from_} → {edge.to}", 32), text) if edge.fields or edge.weights else []
    return [*out, *_messages(seen)]


def _columns(edge: EdgeView) -> str:
    size = [f"{edge.bytes} bytes, {edge.row_bytes} a row"] if edge.row_bytes != "0" else []
    size += [f"the text of {', '.join(edge.text)}"] if edge.text else []
    return f"{', '.join(edge.fields)}: {' and '.join(size)}"


def _messages(seen: Views) -> list[str]:
    """What the controller says and hears: one line a process."""
    said = {edge.to: edge for edge in seen.edges if edge.from_ == CONTROLLER}
    heard = {edge.from_: edge for edge in seen.edges if edge.to == CONTROLLER}
    out: list[str] = []
    for process in dict.fromkeys([*said, *heard]):
        sides = [(">", said.get(process)), ("<", heard.get(process))]
        text = "; ".join(f"{mark} {', '.join(edge.inline)}: {edge.bytes} bytes" for mark, edge in sides if edge is not None)
        out += _hanging(_front(f"{CONTROLLER} ↔ {process}", 32), text)
    return out


def _dropped(seen: Views) -> list[str]:
    by_why: dict[str, dict[str, list[str]]] = {}
    for reason in seen.dropped.reasons:
        fields = by_why.setdefault(reason.why, {}).setdefault(reason.writer or reason.name, [])
        fields += [reason.name] if reason.writer else []
    out = ["", "dropped"] if by_why else []
    for why, writers in by_why.items():
        out.append(f"  {why}")
        for writer, fields in writers.items():
            out += _hanging(_front(f"  {writer}", 20), ", ".join(fields))
    return out


def _peaks(seen: Views) -> list[str]:
    out = ["", "peak bytes of columns (as numbers: --sizes LETTER=NUMBER,...)"] if seen.peaks else []
    for peak in seen.peaks:
        out += _hanging(_front(peak.process), f"in {peak.call}: {peak.bytes}")
    return out


def _peaks_for(plan: Plan, sizes: Mapping[str, int]) -> list[str]:
    out = ["", f"peak bytes of columns at {', '.join(f'{letter}={size}' for letter, size in sizes.items())}"]
    for process, peak in plan.peak(**sizes).items():
        shares = ", ".join(f"{share.field} {_bytes(share.bytes)}" for share in peak.shares[:LARGEST])
        more = f" and {len(peak.shares) - LARGEST} smaller" if len(peak.shares) > LARGEST else ""
        out += _hanging(_front(process), f"{_bytes(peak.bytes)} in {peak.call}: {shares}{more}")
    return out


def _bytes(count: int) -> str:
    """1.5 MiB"""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{count} B"


def _front(name: str, width: int = 18) -> str:
    """A name as the first column of a line."""
    return f"  {name:<{max(width, len(name) + 1)}}"


def _hanging(front: str, text: str) -> list[str]:
    """`text` beside `front`, wrapped under itself."""
    width = max(WIDTH - len(front), 30)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [front + lines[0], *(" " * len(front) + line for line in lines[1:])]
