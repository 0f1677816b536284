"""Numbers that count something: which parameter is one, and the least that makes a graph.

A count is found by the kind of the declaration it stands in, never by the name of an operator; a parameter that binds a size
(`n: Annotated[int, G]`) is one by its type.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import source
from .diagnostic import Diagnostic, shown
from .source import Call, Place

if TYPE_CHECKING:
    from .operator import Declaration

# kind → parameter → least value. A parameter that a declaration of the kind does not have is no matter.
COUNTS: dict[str, dict[str, int]] = {
    "form": {"prompts": 1},  # rows="form" and so on
    "pad": {"multiple": 1},
    "permute": {"pieces": 1, "mini_batches": 1},
    "shard": {"mini_batches": 1},
    "pack": {"max_tokens": 1},
    "micro": {"updates": 1},  # per="micro"
    "sink": {"every": 0, "samples": 1, "attempts": 1},  # sink=True
    "worker": {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "replicas": 1, "capacity": 1},
    "devices": {"count": 1},
    "feedback": {"max_lag": 0},
}


def counts_of(declaration: Declaration) -> dict[str, int]:
    """Parameter of an operator → least value."""
    kinds = (declaration.rows, declaration.per, "sink" if declaration.sink else "")
    return dict.fromkeys(declaration.letters, 1) | {n: least for kind in kinds for n, least in COUNTS.get(kind, {}).items()}


def is_count(value: object, least: int) -> bool:
    """An integer, and not below the bound. (True is no integer here.)"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Counts:
    """Refuses counts, once for each variable: with dp=0, `pad(multiple=dp * mini_batches)` is no news."""

    def __init__(self) -> None:
        self.told: set[str] = set()  # names in the arguments that were refused

    def refuse(self, call: Call, title: str, name: str, position: int | None, value: Any, least: int) -> Diagnostic | None:
        """The diagnostic at the argument; None when it follows from one that was told."""
        given = source.argument_node(call, name, position)
        names = set(_variables(given)) if given else set[str]()
        if names & self.told:
            return None
        self.told |= names
        return _refused(source.argument(call, name, position), title, name, value, least)


def _variables(given: ast.AST) -> Iterator[str]:
    """What it is computed of: `dp`, and `options.dp` as one name."""
    if isinstance(given, ast.Name | ast.Attribute):
        yield ast.unparse(given)
    else:
        for part in ast.iter_child_nodes(given):
            yield from _variables(part)


def _refused(at: Place, title: str, name: str, value: Any, least: int) -> Diagnostic:
    return Diagnostic(
        code="RLF015",
        message=f"`{name}` of `{title}` is an integer of at least {least}, got {shown(value)}",
        where=at,
        label=f"this is {shown(value)}",
        help=f"give at least {least}",
    )
