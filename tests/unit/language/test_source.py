"""Places: the call that runs, its arguments, and where things are declared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rlflow import Record, operator
from rlflow.language.source import Place, argument, attribute_ref, caller, characters, lines, locate, parameter_ref


def text(place: Place) -> str:
    """What stands at a place."""
    assert place.line == place.end_line
    return lines(place.file)[place.line - 1][place.column : place.end_column]


class Here:
    """Notes the call that makes it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.call = caller(sys._getframe(1))

    def again(self) -> Here:
        return Here.at(caller_of=1)

    @staticmethod
    def at(caller_of: int) -> Here:
        here = object.__new__(Here)
        here.call = caller(sys._getframe(caller_of + 1))
        return here


def test_the_running_call_and_the_name_that_it_is_assigned_to() -> None:
    found = Here(1, word=2)
    assert (text(found.call.place), found.call.target) == ("Here(1, word=2)", "found")


def test_nested_calls_have_no_name() -> None:
    pair = [Here(1), Here(2)]
    assert [(text(h.call.place), h.call.target) for h in pair] == [("Here(1)", None), ("Here(2)", None)]


def test_chained_calls_are_told_apart() -> None:
    chained = Here(0).again()
    assert (text(chained.call.place), chained.call.target) == ("Here(0).again()", "chained")


def test_both_branches_of_a_conditional_have_the_name() -> None:
    one = Here(1) if lines else Here(2)
    two = Here(1) if not lines else Here(2)
    assert [(text(h.call.place), h.call.target) for h in (one, two)] == [("Here(1)", "one"), ("Here(2)", "two")]


def test_arguments_by_position_and_by_name() -> None:
    call = Here([1, 2], word="x").call
    assert [text(argument(call, name, position)) for name, position in (("first", 0), ("word", 5))] == ["[1, 2]", '"x"']
    assert argument(call, "left out", 7) == call.place


class Pair(Record):
    left: int
    right: int


class More(Pair):
    third: int


def test_a_field_is_found_in_the_class_that_declares_it() -> None:
    place = locate(attribute_ref(More, "right"))
    assert place is not None
    assert text(place) == "right: int"


@operator(per="row")
def halve(numbers: list[float], *, by: int = 2) -> list[float]:
    return [n / by for n in numbers]


def test_a_parameter_is_found_under_its_decorator() -> None:
    places = [locate(parameter_ref(halve, name)) for name in ("numbers", "by")]
    assert [text(p) for p in places if p] == ["numbers: list[float]", "by: int"]


def test_a_file_that_is_gone_has_no_places(tmp_path: Path) -> None:
    file = tmp_path / "gone.py"
    file.write_text("def f(x):\n    pass\n")
    space: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    file.unlink()
    assert locate(parameter_ref(space["f"], "x")) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("nested", [False, True])
def test_columns_after_other_scripts(nested: bool) -> None:
    found = ("über", Here(1))[1]
    assert found.call.place.column == len('    found = ("über", '.encode())


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('odd = "\u2028 \x85"  # \x0c\n', "utf-8"),  # no line ends for Python, though for str.splitlines
        ("\x0c\n", "utf-8"),
        ("# a byte order mark stands before this\n", "utf-8-sig"),
        ("# -*- coding: latin-1 -*-\n# é\n", "latin-1"),
    ],
)
def test_lines_and_columns_are_counted_as_python_does(head: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "encoded.py"
    path.write_bytes((head + 'é = "é"; found = Here("é", word=2)\n').encode(encoding))
    scope: dict[str, Any] = {"Here": Here}
    exec(compile(path.read_bytes(), str(path), "exec"), scope)
    call = scope["found"].call
    assert (call.place.line, call.target) == (head.count("\n") + 1, "found")
    assert characters(call.place) == (17, 34)
    assert characters(argument(call, "word", 5)) == (32, 33)
