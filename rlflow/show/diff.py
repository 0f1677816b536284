"""`rlflow diff A.py B.py`: what changes between two plans, in parameters, workers, calls, fields, hops, feedbacks, state.

    rows(A), rows(B) ──by key──▶ only in A: removed · only in B: added · in both, not equal: changed, attribute by attribute

A field whose writer is another one is the same field, where its name is unique on either side.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..compile.ir import Node
from ..compile.plan import Plan
from .explain import WIDTH, behind

Rows = dict[str, dict[str, Any]]  # key -> what is compared


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One attribute that is not equal. Of a collection: what is only in A, what is only in B."""

    what: str
    a: Any
    b: Any


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is in one of the two plans only, or in both and not equal."""

    name: str
    attributes: dict[str, Any]  # of the one that there is; of A where it changed
    changes: tuple[Change, ...] = ()


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing."""

    removed: tuple[Row, ...]
    added: tuple[Row, ...]
    changed: tuple[Row, ...]


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. A section without a difference is left out."""

    a: str
    b: str
    same: bool
    sections: dict[str, Section]


def diff(a: Plan, b: Plan, names: tuple[str, str] | None = None) -> Diff:
    """From `a` to `b`. names: what they are called; default: as their pipelines."""
    one, two = _tables(a), _tables(b)
    one["fields"], two["fields"] = _paired(one["fields"], two["fields"])
    sections = {name: _section(one[name], two[name]) for name in one}
    kept = {name: section for name, section in sections.items() if section.removed or section.added or section.changed}
    name_a, name_b = names or (a.graph.name, b.graph.name)
    return Diff(a=name_a, b=name_b, same=not kept, sections=kept)


def _tables(plan: Plan) -> dict[str, Rows]:
    data: dict[str, Any] = msgspec.to_builtins(plan.views)
    nodes = {node.name: node for node in plan.graph.nodes}
    return {
        "parameters": {name: {"value": _plain(plan, value)} for name, value in plan.graph.parameters.items()},
        "workers": {row["name"]: row for row in data["workers"]},
        "operators": {row["name"]: _without("at", row) | _options(plan, nodes[row["name"]]) for row in data["operators"]},
        "fields": {f"{row['writer']}.{row['name']}": _without("born", row) for row in data["fields"]},
        "edges": {f"{row['from']} → {row['to']}": row for row in data["edges"] if row["fields"] or row["weights"]},
        "feedbacks": {row["name"]: row for row in data["feedbacks"]},
        "state": {f"{row['owner']}.{row['name']}": row for row in data["state"]},
    }


def _without(key: str, row: dict[str, Any]) -> dict[str, Any]:
    """Where a call stands in its file is no difference; a field is born at its writer."""
    return {k: v for k, v in row.items() if k != key}


def _options(plan: Plan, node: Node) -> dict[str, Any]:
    """The configuration of a call, and of its losses."""
    losses = {loss.name: _plain(plan, loss.options) if loss.active else "off" for loss in node.losses}
    return {"options": _plain(plan, node.params), "losses": losses}


def _plain(plan: Plan, value: Any) -> Any:
    """Configuration as it is read: names in place of references."""
    match value:
        case {"$worker": worker}:
            return plan.graph.workers[worker].name
        case {"$ref": name} | {"$repr": name} | {"$float": name}:
            return name
        case {"$tuple": items}:
            return _plain(plan, items)
        case {"$partial": name, "kwargs": options}:
            return {"function": name, **_plain(plan, options)}
        case {"$data": name, **rest}:
            return {"class": name, **_plain(plan, rest)}
        case dict():
            return {key: _plain(plan, item) for key, item in value.items()}
        case list():
            return [_plain(plan, item) for item in value]
        case _:
            return value


def _paired(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """One key for a field that changed its writer: on either side it is the only one of that name without a twin."""

    def alone(rows: Rows, others: Rows) -> dict[str, str]:
        names = [row["name"] for key, row in rows.items() if key not in others]
        return {row["name"]: key for key, row in rows.items() if key not in others and names.count(row["name"]) == 1}

    left, right = alone(a, b), alone(b, a)
    renamed = {right[name]: left[name] for name in left.keys() & right.keys()}
    return a, {renamed.get(key, key): row for key, row in b.items()}


def _section(a: Rows, b: Rows) -> Section:
    both = [(key, _changes(a[key], b[key])) for key in a if key in b]
    return Section(
        removed=tuple(Row(name=key, attributes=row) for key, row in a.items() if key not in b),
        added=tuple(Row(name=key, attributes=row) for key, row in b.items() if key not in a),
        changed=tuple(Row(name=key, attributes=a[key], changes=changes) for key, changes in both if changes),
    )


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    found: list[Change] = []
    for what in {**a, **b}:
        one, two = a.get(what), b.get(what)
        if one == two:
            continue
        if isinstance(one, dict) and isinstance(two, dict):
            found += [Change(what=f"{what}.{c.what}", a=c.a, b=c.b) for c in _changes(one, two)]
        elif isinstance(one, tuple | list) and isinstance(two, tuple | list) and what != "shape":
            found += _members(what, list(one), list(two))
        else:
            found.append(Change(what=what, a=one, b=two))
    return tuple(found)


def _members(what: str, one: list[Any], two: list[Any]) -> Iterator[Change]:
    """What left and what came; an order that changed alone is no difference."""
    left, came = [x for x in one if x not in two], [x for x in two if x not in one]
    if left or came:
        yield Change(what=what, a=left, b=came)


# --- as text -----------------------------------------------------------------------------------------------------------------
def as_text(found: Diff) -> str:
    """A block a section; - is only in A, + only in B, ~ in both."""
    out = [f"{found.a} → {found.b}" + (": no difference" if found.same else "")]
    for name, section in found.sections.items():
        out += ["", "hops" if name == "edges" else name]
        out += [line for row in section.removed for line in _line("-", row.name, _about(name, row.attributes))]
        out += [line for row in section.added for line in _line("+", row.name, _about(name, row.attributes))]
        for row in section.changed:
            out += _line("~", row.name, "; ".join(map(_change, row.changes)))
    return "\n".join(out)


def _line(mark: str, name: str, text: str) -> list[str]:
    whole = f"  {mark} {name}: {text}" if text else f"  {mark} {name}"
    return textwrap.wrap(whole, WIDTH, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)


def _change(change: Change) -> str:
    if isinstance(change.a, list):
        parts = [f"- {_text(x)}" for x in change.a] + [f"+ {_text(x)}" for x in change.b]
        return f"{change.what} {', '.join(parts)}".removeprefix("value ")
    return f"{change.what} {_text(change.a)} → {_text(change.b)}".removeprefix("value ")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"({', '.join(f'{key}={_text(item)}' for key, item in value.items())})"
    return "-" if value is None else str(value)


def _about(section: str, row: Mapping[str, Any]) -> str:
    """One that there is once, in a few words."""
    match section:
        case "parameters":
            return _text(row["value"])
        case "workers":
            ranks = row["dp"] * row["tp"] * row["pp"] * row["cp"]
            return f"{row['kind']}, {ranks} rank{'s' * (ranks != 1)}"
        case "operators":
            return f"on {row['worker']}, reads {', '.join(row['reads']) or 'no field'}{', dropped' * row['dropped']}"
        case "fields":
            return f"{row['dtype']}{_text(row['shape'])} {row['role'] or ''}, read by {', '.join(row['readers']) or 'nobody'}"
        case "edges":
            text = f" and the text of {', '.join(row['text'])}" if row["text"] else ""
            return f"{', '.join([*row['fields'], *row['weights']])}: {row['bytes']} bytes{text} a step"
        case "state":
            return f"{row['bytes']} bytes{', in the checkpoint' * row['in_checkpoint']}"
        case _:
            return f"on {row['owner']}, {behind(row['worst_gap'], row['stale'])}"
