"""Mistakes with fields: left out, swapped, of another kind or size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from fault import Fault, calls, field_spots, is_optional
from loop_model import KINDS, RECORDS, Arg, Column, Line, Program, Raw, accepts
from loop_writer import Choose


def dropped_argument(program: Program, choose: Choose) -> Fault | None:
    spots = [(line, arg) for line, arg in field_spots(program, records=False) if not is_optional(line, arg)]
    if not spots:
        return None
    line, arg = choose.one(spots)
    line.call.args.remove(arg)
    return Fault(("RLF004",), line, text=str(line.call))


def dropped_field(program: Program, choose: Choose) -> Fault | None:
    spots = [spot for spot in field_spots(program) if spot[0].call.is_record]
    line, arg = choose.one(spots)
    line.call.args.remove(arg)
    return Fault(("RLF004",), line)


def left_out(program: Program, choose: Choose) -> Fault | None:
    """`absent(...)` for a field that a training call reads."""
    spots = [(line, arg) for line, arg in field_spots(program) if arg.param in line.reads]
    if not spots:
        return None
    line, arg = choose.one(spots)
    arg.value = Raw('absent("forgotten")')
    return Fault(("RLF008",), line, primary=(*line.readers, *program.lines("late")), also=(line,))


def dropped_base(program: Program, choose: Choose) -> Fault | None:
    """The record lacks what a loss reads."""
    line = next(line for line in program.body if line.reads)
    bases = [base for base in program.records[line.call.fn] if _only_of(program, line, base) & line.reads]
    if line.target is None or any(other.what == "late" for other in program.body) or not bases:
        return None
    base = choose.one(bases)
    lost = _only_of(program, line, base)
    program.records[line.call.fn].remove(base)
    line.call.args = [arg for arg in line.call.args if arg.param not in lost]
    return Fault(("RLF001",), line, primary=tuple(line.readers))


def _only_of(program: Program, line: Line, base: str) -> set[str]:
    others = {field for other in program.records[line.call.fn] if other != base for field in RECORDS.get(other, {})}
    return set(RECORDS.get(base, {})) - others if base in ("PpoRows", "ValueRows", "TeacherRows", "KlRows") else set()


def swapped(program: Program, choose: Choose) -> Fault | None:
    spots: list[tuple[Line, Arg, Arg]] = []
    for line in calls(program):
        given = [arg for arg in line.call.args if arg.param in line.call.takes and isinstance(arg.value, Column)]
        for i, one in enumerate(given):
            for two in given[i + 1 :]:
                wants = line.call.takes[one.param], line.call.takes[two.param]
                kinds = one.value.kind, two.value.kind  # type: ignore[union-attr]
                if not accepts(wants[0], kinds[1]) and not accepts(wants[1], kinds[0]):
                    spots.append((line, one, two))
    if not spots:
        return None
    line, one, two = choose.one(spots)
    one.value, two.value = two.value, one.value
    return Fault(("RLF122",), line)


def mixed_up(program: Program, choose: Choose) -> Fault | None:
    """Three arguments, each in the place of the next."""
    spots: list[tuple[Line, list[Arg]]] = []
    for line in calls(program):
        given = [arg for arg in line.call.args if arg.param in line.call.takes and isinstance(arg.value, Column)]
        takes = line.call.takes
        for three in combinations(given, 3):
            kinds = [arg.value.kind for arg in three if isinstance(arg.value, Column)]
            if not any(accepts(takes[arg.param], kind) for i, arg in enumerate(three) for j, kind in enumerate(kinds) if i != j):
                spots.append((line, list(three)))
    if not spots:
        return None
    line, (a, b, c) = choose.one(spots)
    a.value, b.value, c.value = b.value, c.value, a.value
    return Fault(("RLF122",), line)


def _replaced(program: Program, choose: Choose, fits: Callable[[str, str], bool], code: str, *, others: int = 0) -> Fault | None:
    """Another field of the same rows for an argument; `fits(wanted, given)` says which."""
    spots: list[tuple[Line, Arg, Column]] = []
    for line, arg in field_spots(program):
        assert isinstance(arg.value, Column)
        rest = [a for a in line.call.args if a is not arg and isinstance(a.value, Column) and "S" in _lengths(a.value.kind)]
        if len(rest) < others:
            continue
        for column in program.columns_before(line):
            if column.rows is arg.value.rows and fits(line.call.takes[arg.param], column.kind):
                spots.append((line, arg, column))
    if not spots:
        return None
    line, arg, column = choose.one(spots)
    arg.value = column
    return Fault((code,), line, text=column.text if others != 1 else None)


def _lengths(kind: str) -> str:
    return KINDS[kind].axes.replace("R", "S")


def wrong_dtype(program: Program, choose: Choose) -> Fault | None:
    return _replaced(program, choose, lambda want, got: KINDS[want].dtype != KINDS[got].dtype, "RLF101")


def wrong_axes(program: Program, choose: Choose) -> Fault | None:
    def fits(want: str, got: str) -> bool:
        return KINDS[want].dtype == KINDS[got].dtype and len(KINDS[want].axes) != len(KINDS[got].axes)

    return _replaced(program, choose, fits, "RLF102")


def wrong_role(program: Program, choose: Choose) -> Fault | None:
    def fits(want: str, got: str) -> bool:
        same = KINDS[want].dtype == KINDS[got].dtype and len(KINDS[want].axes) == len(KINDS[got].axes)
        return same and not accepts(want, got) and KINDS[want].role != KINDS[got].role

    return _replaced(program, choose, fits, "RLF121")


def off_by_one(program: Program, choose: Choose) -> Fault | None:
    """[B, S] for [B, R], beside an argument that says what S is."""

    def fits(want: str, got: str) -> bool:
        return KINDS[want].role == KINDS[got].role and {KINDS[want].axes, KINDS[got].axes} == {"BS", "BR"}

    return _replaced(program, choose, fits, "RLF103", others=1)
