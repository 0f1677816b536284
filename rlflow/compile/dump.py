"""What one pass found out, as text: for people who write passes."""

from __future__ import annotations

from ..errors import UsageError
from .plan import Plan

TABLES = {
    "own": (),
    "infer": ("specs", "rows", "scored", "corrected"),
    "version": ("versions",),
    "live": ("last_read", "from_forward", "dropped"),
    "order": (),
    "place": ("site",),
}


def dump(plan: Plan, name: str) -> str:
    """The tables of one pass, a line an entry. Raises UsageError for a pass that there is none of."""
    if name not in TABLES:
        raise UsageError(f"there is no pass `{name}`; the passes are {', '.join(TABLES)}")
    out = [f"{name}: {plan.timings_ms[name]:.2f} ms"]
    for table in TABLES[name]:
        out.append(f"{table}:")
        out += [f"  {_name(plan, table, key)}  {_value(plan, table, value)}" for key, value in getattr(plan.facts, table).items()]
    return "\n".join(out)


def _name(plan: Plan, table: str, key: int) -> str:
    if table in ("site", "from_forward", "dropped"):
        return f"{key} {plan.graph.nodes[key].name}"
    return f"{key} {plan.graph.writer(key).name}.{plan.graph.fields[key].name}"


def _value(plan: Plan, table: str, value: object) -> str:
    if table == "rows" and isinstance(value, int):
        rows = plan.facts.rowsets[value]
        return f"{value}: {rows.scope}, {rows.size} rows, {rows.how}"
    if table == "last_read" and isinstance(value, int):
        return plan.graph.nodes[value].name
    return str(value)
