"""Where a call of the user is given an argument, and how the call would read with another one: for labels and help that can be pasted."""

from __future__ import annotations

from ..language import source
from .ir import Node, Place


def argument(node: Node, param: str) -> Place:
    """The span of one argument; that of the call where it is left to its default."""
    position = node.order.index(param) if param in node.order else len(node.order)
    return source.argument_place(node.at, param) or source.argument_place(node.at, position) or node.at


def written(node: Node, param: str) -> str:
    """What the call is given there, as written."""
    place = argument(node, param)
    return "..." if place == node.at else source.text(place)


def rewritten(node: Node, param: str, value: str) -> str:
    """The call, with that argument instead of what it was given."""
    position = node.order.index(param) if param in node.order else None
    return source.rewritten(node.at, param, position, value) or f"{node.title}(..., {param}={value})"


def nested(inner: Node, outer: Node) -> str:
    """The two calls in this order: `rebalance(pad(rows, multiple=2), pieces=8)`."""
    first, second = (node.result.param or "rows" for node in (inner, outer))
    return rewritten(outer, second, rewritten(inner, first, written(outer, second)))
