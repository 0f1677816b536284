"""Row discipline, in one table: what each kind of row operator needs of rows, what it gives, and which of their facts it keeps.

    stream ── form ──▶ batch ── pad ──▶ batch ── permute ──▶ batch ── shard ──▶ shard ── pack ──▶ micro
             whole groups      padded           balanced             cut for a worker          packed
                               divisible        into mini-batches    into mini-batches

A fact that is neither given nor kept is lost. rows.py makes the new row set from this table, order.py refuses by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .facts import RowSet
from .ir import Node

Given = dict[str, Any]  # facts of a RowSet

EVERYWHERE = ("stream", "batch", "shard", "micro")
UNPACKED = ("stream", "batch", "shard")


def _form(node: Node, old: RowSet) -> Given:
    return {"scope": "batch"}


def _filter(node: Node, old: RowSet) -> Given:
    """What is left of a group that was taken apart counts as whole, and is what the last such filter declares: the run holds it to that."""
    left = {"group": node.least_kept, "parted_by": node.id} if node.least_kept else dict[str, Any]()
    return {"whole": old.whole and drops_groups(node, old), **left}


def drops_groups(node: Node, old: RowSet) -> bool:
    """A filter that looks at groups drops them, most of them whole, and so does any of prompts, before they are dispatched."""
    return node.per == "group" or old.size.single == old.prompts


def _pad(node: Node, old: RowSet) -> Given:
    return {"padded": True, "multiple": node.params["multiple"]}


def _permute(node: Node, old: RowSet) -> Given:
    """One that balances says so by its parameters; any other only shuffles."""
    if not {"pieces", "mini_batches"} & node.params.keys():
        return {}
    return {"balanced": True, "mini_batches": node.params.get("mini_batches", 1)}


def _shard(node: Node, old: RowSet) -> Given:
    return {"scope": "shard", "whole": False, "cut_for": node.params["on"]["$worker"], "mini_batches": node.params.get("mini_batches", 1)}


def _pack(node: Node, old: RowSet) -> Given:
    return {"scope": "micro", "whole": False}


def _nothing(node: Node, old: RowSet) -> Given:
    return {}


class Rule(NamedTuple):
    needs: tuple[str, ...]  # scopes of rows that it takes
    undoes: tuple[str, ...]  # facts that must not hold yet: it would undo them
    keeps: tuple[str, ...]
    gives: Callable[[Node, RowSet], Given] = _nothing


GROUPS = ("group", "parted_by", "leaves")  # how many rows belong together is true wherever they lie
WHOLE = ("whole", *GROUPS)
CUT = ("cut_for", "mini_batches")
# fmt: off
RULES: dict[str, Rule] = {
    # rows=           needs                undoes                  keeps                                               gives
    "keep":    Rule(UNPACKED,            (),                     (*WHOLE, "padded", "multiple", "balanced", *CUT)),
    "fresh":   Rule(UNPACKED,            (),                     (*WHOLE, "padded", "cut_for")),  # results on rows of their own
    "expand":  Rule(("stream",),         (),                     (*WHOLE, "padded")),
    "form":    Rule(("stream",),         (),                     WHOLE,                                              _form),
    "filter":  Rule(("stream", "batch"), ("padded", "balanced"), GROUPS,                                             _filter),
    "pad":     Rule(("batch",),          ("padded", "balanced"), WHOLE,                                              _pad),
    "permute": Rule(("batch",),          ("balanced",),          (*WHOLE, "padded", "multiple"),                     _permute),
    "shard":   Rule(("batch",),          (),                     (*GROUPS, "padded", "balanced"),                    _shard),
    "pack":    Rule(("shard",),          (),                     (*GROUPS, "padded", "balanced", *CUT),              _pack),
}
# fmt: on
PER: dict[str, tuple[str, ...]] = {"batch": ("batch",), "micro": ("micro",)}  # how far it looks → scopes, where that narrows the rule's

AFTER = {"stream": "form_batch", "batch": "shard", "shard": "micro_pack"}  # what leads on from a scope


def needs(node: Node) -> tuple[str, ...]:
    """The scopes of rows that a call takes."""
    return PER.get(node.per, RULES[node.rows].needs) if node.rows == "keep" else RULES[node.rows].needs


def after(how: str, node: Node, old: RowSet) -> Given:
    """The facts that hold of the rows that `node` makes of `old`."""
    rule = RULES[how]
    return {"scope": old.scope} | {fact: getattr(old, fact) for fact in rule.keeps} | rule.gives(node, old)


def undone(node: Node, old: RowSet) -> str | None:
    """A fact of `old` that the call would undo."""
    return next((fact for fact in RULES[node.rows].undoes if getattr(old, fact)), None)
