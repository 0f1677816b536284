"""`rlflow explain pipelines/grpo.py`: the field map as text, 138 columns wide.

processes   which call runs where
weights     each feedback, its readings and who holds them
fields      by writer: type, role, rows, the versions it depends on, its readers, and after which of them it is freed
hops        what crosses from process to process, in bytes a row
"""

from __future__ import annotations

import textwrap
from typing import Any

import msgspec

from ..compile.place import CONTROLLER
from ..compile.plan import Plan
from .fieldmap import FieldMap, FieldRow, field_map

WIDTH = 138
COLUMNS = (("field", 22), ("type", 19), ("role", 23), ("rows", 7), ("depends on", 23), ("read by", 42))  # and two in front


def explain(plan: Plan) -> str:
    """The field map of a plan. x marks what is dropped: no later call, and no next step, depends on it."""
    found = field_map(plan)
    parts = [_head(plan, found), *_processes(found), *_weights(found), *_fields(found), *_hops(found)]
    parts += [f"\n{warning}" for warning in plan.warnings]
    return "\n".join(line.rstrip() for line in parts)


def explain_json(plan: Plan) -> dict[str, Any]:
    """The same as plain data, for `--json`: see fieldmap.py for the keys."""
    data: dict[str, Any] = msgspec.to_builtins(field_map(plan))
    data["warnings"] = [msgspec.to_builtins(warning) for warning in plan.warnings]
    return data


def _head(plan: Plan, found: FieldMap) -> str:
    counts = (
        (len(found.calls), "call"),
        (len(found.ranks), "worker"),
        (len(found.weights), "feedback"),
        (len(found.fields), "field"),
    )
    return f"{found.name} ({found.module}): " + ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts)


def _processes(found: FieldMap) -> list[str]:
    sites: dict[str, list[str]] = {}
    for call in found.calls:
        sites.setdefault(call.site, []).append(call.name if call.needed else f"x {call.name}")
    out = ["", "processes"]
    for site, calls in sites.items():
        ranks = found.ranks.get(site, 1)
        label = f"{site} x {ranks}" if ranks > 1 else site
        plans = " (row plans: keys, lengths and ids, no field is sent here)" if site == CONTROLLER else ""
        out += _hanging(f"  {label:<18}", ", ".join(calls) + plans)
    return out


def _weights(found: FieldMap) -> list[str]:
    out = ["", "weights"] if found.weights else []
    for row in found.weights:
        text = f"version k on {row.owner}, first from {row.init}; "
        text += "; ".join(f".{reading} in {', '.join(calls)}" for reading, calls in row.readers.items() if reading != "next")
        text += f"; k + 1 goes to {', '.join(row.served_by)}" if row.served_by else ""
        text += f"; rollouts lag by at most {row.max_lag}" if row.served_by else ""
        out += _hanging(f"  {row.name:<18}", text)
    return out


def _fields(found: FieldMap) -> list[str]:
    heading = "  " + "".join(f"{title:<{width}}" for title, width in COLUMNS)
    out = ["", "fields", heading.rstrip(), "  " + "-" * (WIDTH - 2)]
    calls = {call.name: call for call in found.calls}
    writer = None
    for row in found.fields:
        if row.writer != writer:
            call = calls[row.writer]
            dropped = "" if call.needed else ", dropped: nothing depends on it"
            out.append(f"{' ' if call.needed else 'x'} {row.writer}   on {call.site}, per {call.per}{dropped}")
            writer = row.writer
        out += _field(row)
    return out


def _field(row: FieldRow) -> list[str]:
    depends: dict[str, list[str]] = {}
    for version in row.versions:
        feedback, _, reading = version.partition("@")
        depends.setdefault(feedback, []).append(reading)
    cells = (
        f"  {row.name}",
        f"{row.dtype}[{', '.join(row.shape)}]",
        row.role or "-",
        row.scope,
        " ".join(f"{name}@{','.join(readings)}" for name, readings in depends.items()) or "-",
    )
    mark = "x" if row.dies_after is None else " "
    front = f"{mark} " + "".join(f"{cell:<{max(width, len(cell) + 1)}}" for cell, (_, width) in zip(cells, COLUMNS, strict=False))
    if row.dies_after is None:
        return [front + "nobody: dropped"]
    earlier = [name for name in row.readers if name != row.dies_after]
    return _hanging(front, ", ".join([*earlier, f"dies after {row.dies_after}"]))


def _hops(found: FieldMap) -> list[str]:
    out = ["", "hops (a column that the receiver does not read stays where it was made)"]
    for hop in found.hops:
        size = [f"{hop.bytes_a_row} bytes"] if hop.bytes_a_row != "0" else []
        size += [f"the text of {', '.join(hop.text)}"] if hop.text else []
        out += _hanging(f"  {f'{hop.sender} → {hop.receiver}':<32}", f"{', '.join(hop.fields)}: {' and '.join(size)} a row")
    for row in found.weights:
        for engine in row.served_by:
            out += _hanging(f"  {f'{row.owner} → {engine}':<32}", f"weights of {row.name}, version k + 1, once a step")
    return out


def _hanging(front: str, text: str) -> list[str]:
    """`text` beside `front`, wrapped under itself."""
    width = max(WIDTH - len(front), 30)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [front + lines[0], *(" " * len(front) + line for line in lines[1:])]
