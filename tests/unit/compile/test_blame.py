"""Who is named when sizes differ: every way in which two to four arguments of one call can be one token too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Annotated, Any

import pytest
from start import Start
from vocabulary import Advantages, B, R, S, advantage

from rlflow import CheckFailed, Tensor, f32, operator, pipeline
from rlflow.language.diagnostic import Diagnostic

Long = Annotated[Tensor, f32[B, S], advantage]


@operator(per="row")
def longer(advantages: Advantages) -> Long: ...  # type: ignore[empty-body]


@operator(per="row")
def two(a: Advantages, b: Advantages) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="row")
def three(a: Advantages, b: Advantages, c: Long) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="row")
def four(a: Advantages, b: Long, c: Advantages, d: Annotated[Tensor, f32[B, 2 * R], advantage]) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="row")
def doubled(advantages: Annotated[Tensor, f32[B, R], advantage]) -> Annotated[Tensor, f32[B, 2 * R], advantage]: ...  # type: ignore[empty-body]


def cases() -> Iterator[tuple[Callable[..., Any], tuple[bool, ...]]]:
    for operator_ in (two, three, four):
        count = {two: 2, three: 3, four: 4}[operator_]
        yield from ((operator_, wrong) for wrong in product((False, True), repeat=count) if any(wrong))


def errors(called: Callable[..., Any], wrong: tuple[bool, ...]) -> list[Diagnostic]:
    """Of a call in which the arguments marked are about rows one token longer than those of the others."""

    @pipeline
    def loop() -> None:
        start = Start()
        right, long = start.advantages, longer(start.advantages)
        longest = longer(long)
        by_shape = {"a": (right, long), "b": (right, long), "c": (right, long), "d": (doubled(right), doubled(long))}
        declared = {two: "RR", three: "RRS", four: "RSR2"}[called]
        arguments = []
        for name, shape, is_long in zip("abcd", declared, wrong, strict=False):
            pair = (long, longest) if shape == "S" else by_shape[name]
            arguments.append(pair[is_long])
        called(*arguments)
        start.finish(start.rows())

    try:
        loop()
    except CheckFailed as refused:
        return [d for d in refused.diagnostics if d.severity == "error"]
    return []


@pytest.mark.parametrize(("called", "wrong"), cases())
def test_the_minority_is_named(called: Callable[..., Any], wrong: tuple[bool, ...]) -> None:
    found = errors(called, wrong)
    marked, others = ({name for name, is_long in zip("abcd", wrong, strict=False) if is_long is side} for side in (True, False))
    assert {d.code for d in found} <= {"RLF103"}
    if not others or not marked:
        assert found == []
    elif len(marked) == len(others):
        (one,) = found
        assert " disagree on " in one.message
        named = {name for name in "abcd" if f"`{name}`" in one.message}
        assert len(named & marked) == len(named & others) == 1
    else:
        fewer = min(marked, others, key=len)
        assert {name for d in found for name in "abcd" if f"of `{name}` in" in d.message} == fewer
        assert len(found) == len(fewer)
