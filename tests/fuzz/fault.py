"""What a mistake in a generated loop is, and how the functions that make one find their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from loop_model import OPS, Arg, Column, Line, Program
from loop_writer import Choose


@dataclass
class Fault:
    """What was broken. line: the mutated one; primary: where the error stands, when that is another; text: what its place reads."""

    codes: tuple[str, ...]
    line: Line
    primary: tuple[Line, ...] = ()
    text: str | None = None
    also: tuple[Line, ...] = ()  # lines that the message names besides
    severity: str = "error"


Breaker: TypeAlias = Callable[[Program, Choose], Fault | None]
Spot: TypeAlias = tuple[Line, Arg]


def calls(program: Program) -> Iterator[Line]:
    return (line for line in program.body if line.text is None)


def field_spots(program: Program, *, records: bool = True) -> list[Spot]:
    """Arguments that are fields."""
    return [
        (line, arg)
        for line in calls(program)
        if records or not line.call.is_record
        for arg in line.call.args
        if arg.param in line.call.takes and isinstance(arg.value, Column)
    ]


def pick(
    choose: Choose, spots: list[Spot], change: Callable[[Arg], None], codes: tuple[str, ...], *, at_call: bool = False
) -> Fault | None:
    """Break one of the arguments."""
    if not spots:
        return None
    line, arg = choose.one(spots)
    change(arg)
    return Fault(codes, line, text=str(line.call) if at_call else str(arg.value))


def insert(program: Program, after: Line, *lines: Line) -> None:
    at = program.body.index(after) + 1
    program.body[at:at] = lines
    if program.helper and program.helper[1] is after:
        program.helper = (program.helper[0], lines[-1])


def is_optional(line: Line, arg: Arg) -> bool:
    op = OPS.get(line.call.fn.rpartition(".")[2])
    return op is not None and arg.param in op.optional


def fields_of(line: Line) -> dict[str, Column]:
    """The fields that a row operator hands on."""
    return {column.text.rpartition(".")[2]: column for column in line.makes}


def trains(program: Program) -> list[Line]:
    return [line for line in program.body if line.what.startswith("train:")]


def number_of(line: Line, param: str) -> int:
    for arg in line.call.args:
        if arg.param == param:
            return int(eval(str(arg.value)))  # "2 * 6"
    return 1
