"""What a function keeps from one call to the next, read off its bytecode: an operator that keeps something has to declare it.

seen = 0; def f(): global seen; seen += 1          writes a global
log = []; def f(): log.append(...)                 changes one: also log[0] = ..., table.rows[k] = ..., f.calls = ...
def outer(): n = 0; def f(): nonlocal n; n += 1    writes a variable of an outer function
class W(Worker): def f(self): self.seen += 1       sets an attribute of its worker

What a function that it calls keeps is not seen, nor what lies behind a module (torch's random state): this finds the plain cases.
"""

from __future__ import annotations

import dis
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

CHANGES = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "popleft", "remove", "discard", "clear"}
)
GROWS = ("append", "appendleft", "extend", "insert", "setdefault")  # of an attribute: what has `update` or `pop` need be no container
CONTAINERS = (list, dict, set, deque, bytearray)
METHODS = ("LOAD_METHOD", "LOAD_ATTR")


def kept_by(fn: Callable[..., Any]) -> str | None:
    """What the first write of that kind is, in words; None if there is none."""
    fn = inspect.unwrap(fn)
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None:
        return None
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return "is a generator: it goes on where it stopped"
    outer = frozenset(code.co_freevars)
    return next((found for one in _codes(code) for found in _writes(one, outer, getattr(fn, "__globals__", {}))), None)


def kept_on_self(fn: Callable[..., Any]) -> list[str]:
    """The attributes of `self` that a method sets or changes, in the order of the code."""
    code = inspect.unwrap(fn).__code__
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "RESUME")]
    heights, itself, found = _heights(instructions), code.co_varnames[:1], dict[str, None]()
    for at, one in enumerate(instructions):
        slot = _written(instructions, heights, at)
        if slot is None or (one.opname in METHODS and one.argval not in GROWS):
            continue
        root = _maker(instructions, heights, at, slot)
        if root.opname.startswith("LOAD_FAST") and root.argval in itself:
            after = instructions[instructions.index(root) + 1]
            found[after.argval if after.opname in METHODS else one.argval] = None
    return list(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _writes(code: CodeType, outer: frozenset[str], names: dict[str, Any]) -> Iterator[str]:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "RESUME")]
    heights = _heights(instructions)
    for at, one in enumerate(instructions):
        if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield f"writes the global `{one.argval}`"
        elif one.opname in ("STORE_DEREF", "DELETE_DEREF") and one.argval in outer:
            yield f"writes `{one.argval}` of an outer function"
        elif (slot := _written(instructions, heights, at)) is not None:
            root = _maker(instructions, heights, at, slot)
            if root.opname == "LOAD_GLOBAL" and _is_kept(names.get(root.argval), one.opname in METHODS):
                yield f"changes the global `{root.argval}`"


def _heights(instructions: list[dis.Instruction]) -> list[int]:
    """Of the stack before each instruction, as if no jump were taken: right within a statement, and nothing else is asked."""
    heights, height = list[int](), 0
    for one in instructions:
        heights.append(height)
        height += dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
    return heights


def _written(instructions: list[dis.Instruction], heights: list[int], at: int) -> int | None:
    """The slot of the stack that holds what an instruction changes, counted from 1."""
    one, height = instructions[at], heights[at]
    swapped = at > 0 and instructions[at - 1].opname == "SWAP"  # `x[k] += 1` and `x.n += 1` bring the new value under the rest
    if one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        return height - 2 if swapped else height - 1
    if one.opname in ("STORE_ATTR", "DELETE_ATTR"):
        return height - 1 if swapped else height
    return height if one.opname in METHODS and one.argval in CHANGES else None


def _maker(instructions: list[dis.Instruction], heights: list[int], at: int, slot: int) -> dis.Instruction:
    """The instruction that put the first thing into a slot: the root of `a.b[c].d`."""
    return next((instructions[i] for i in range(at - 1, -1, -1) if heights[i] < slot), instructions[0])


def _is_kept(value: Any, by_method: bool) -> bool:
    """A name that is not bound yet is the function itself. Modules and what they hold are not ours to judge."""
    return isinstance(value, CONTAINERS) if by_method else not isinstance(value, ModuleType)
