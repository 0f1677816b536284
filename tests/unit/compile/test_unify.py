"""Letters from sizes, by majority: hard cases written down, and random ones whose answer is known because they were made from it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlflow.compile.unify import Equation, Verdict, solve, unify
from rlflow.language.dims import Dim


def size(text: str | int) -> Dim:
    return Dim.of(text) if isinstance(text, int) else Dim.parse(text)


def verdict(arguments: dict[str, tuple[list[str], list[str | int]]], **fixed: int) -> Verdict:
    """argument -> declared sizes, sizes that it has."""
    equations = [
        Equation(name, axis, size(want), size(got))
        for name, (wants, gots) in arguments.items()
        for axis, (want, got) in enumerate(zip(wants, gots, strict=True))
    ]
    return unify(equations, {letter: Dim.of(n) for letter, n in fixed.items()})


@pytest.mark.parametrize(
    ("want", "got", "letter", "expected"),
    [
        ("S", "512", "S", "512"),
        ("S - 1", "R2 - 1", "S", "R2"),
        ("2*S", "8", "S", "4"),
        ("2*S", "7", "S", None),
        ("2*S", "2*K - 2", "S", "K - 1"),
        ("2*S", "S2 - 1", "S", None),
        ("3*S - 2", "1", "S", "1"),
        ("P*G", "512", "P", "64"),  # G is 8
        ("P*G", "8*P2", "P", "P2"),
        ("P*G + P", "9*K", "P", "K"),
        ("G*G*P", "64", "P", "1"),
        ("S*S", "16", "S", None),  # 4 and -4
        ("S + 1", "0", "S", None),
        ("8 - S", "3", "S", "5"),
    ],
)
def test_one_unknown(want: str, got: str, letter: str, expected: str | None) -> None:
    found = solve(size(want), size(got), letter, {"G": Dim.of(8)})
    assert found == (None if expected is None else size(expected))


@pytest.mark.parametrize(
    ("arguments", "fixed", "letters", "wrong", "open_"),
    [
        # a letter that occurs only in a product
        ({"x": (["P*G"], [512])}, {"G": 8}, {"G": 8, "P": 64}, [], []),
        ({"x": (["P*G"], [512])}, {}, {}, [], ["x"]),
        ({"x": (["P*G"], [512]), "y": (["G"], [8])}, {}, {"G": 8, "P": 64}, [], []),
        ({"x": (["P*G*K"], ["8*B*P2"]), "y": (["K"], ["B"])}, {"G": 8}, {"G": 8, "K": "B", "P": "P2"}, [], []),
        # with a factor
        ({"x": (["2*S"], [10])}, {}, {"S": 5}, [], []),
        ({"x": (["2*S"], [9])}, {}, {}, ["x"], []),
        ({"x": (["2*S"], [9]), "y": (["S"], [4])}, {}, {"S": 4}, ["x"], []),
        # two unknown letters in one axis
        ({"x": (["A + C"], [9])}, {}, {}, [], ["x"]),
        ({"x": (["A + C"], [9]), "y": (["A - C"], [1])}, {}, {}, [], ["x", "y"]),
        ({"x": (["A + C", "A"], [9, 4])}, {}, {"A": 4, "C": 5}, [], []),
        # a square
        ({"x": (["S*S"], [16])}, {}, {}, [], ["x"]),
        ({"x": (["S*S", "S"], [16, 4])}, {}, {"S": 4}, [], []),
        ({"x": (["S*S", "S"], [15, 4])}, {}, {"S": 4}, ["x"], []),
        # an axis that is a number
        ({"x": (["B", "4"], ["P", 4])}, {}, {"B": "P"}, [], []),
        ({"x": (["B", "4"], ["P", "S"])}, {}, {"B": "P"}, ["x"], []),
        ({"x": (["B", "4"], ["P", 5])}, {}, {"B": "P"}, ["x"], []),
        # a parameter against an argument: what was asked for in so many words is right
        ({"x": (["G"], [4])}, {"G": 8}, {"G": 8}, ["x"], []),
        ({"x": (["G"], [4]), "y": (["G"], [4])}, {"G": 8}, {"G": 8}, ["x", "y"], []),
        # an argument that contradicts itself
        ({"x": (["S", "S"], [4, 5]), "y": (["S"], [4])}, {}, {"S": 4}, ["x"], []),
        # the first round binds by a wrong argument what the others know only later
        ({"x": (["P"], [3]), "y": (["P*G", "G"], [16, 2]), "z": (["P*G", "G"], [16, 2])}, {}, {"G": 2, "P": 8}, ["x"], []),
    ],
)
def test_hard_cases(
    arguments: dict[str, tuple[list[str], list[str | int]]],
    fixed: dict[str, int],
    letters: dict[str, str | int],
    wrong: list[str],
    open_: list[str],
) -> None:
    found = verdict(arguments, **fixed)
    assert found.rival is None
    assert found.best.letters == {letter: size(value) for letter, value in letters.items()}
    assert (list(found.best.wrong), list(found.best.open)) == (wrong, open_)


def test_two_against_two_is_nobodys_fault() -> None:
    found = verdict({name: (["S"], [value]) for name, value in {"a": 4, "b": 5, "c": 4, "d": 5}.items()})
    assert list(found.best.wrong) == ["b", "d"]
    assert found.rival is not None
    assert list(found.rival.wrong) == ["a", "c"]


def test_a_tie_of_products_is_a_tie() -> None:
    found = verdict({"x": (["P*G", "G"], [16, 2]), "y": (["P"], [3])})
    assert found.rival is not None
    assert {*found.best.wrong} | {*found.rival.wrong} == {"x", "y"}


# --- random signatures ------------------------------------------------------------------------------------------------------------------
FORMS = ("S", "S - 1", "S + 1", "2*S", "3*S - 2", "G*S", "G*S + S")  # with G = 4
GROUP = {"G": Dim.of(4)}
SIZES = st.one_of(st.integers(2, 600).map(Dim.of), st.sampled_from(["K", "K - 1", "8*P", "P*K + 2"]).map(Dim.parse))


@st.composite
def calls(draw: st.DrawFn, sides: tuple[int, int]) -> tuple[list[Equation], set[str], Dim]:
    """Arguments of which `sides[0]` say S = truth, and `sides[1]` all say another; shuffled. With the names of the others."""
    truth = draw(SIZES)
    other = truth + draw(st.integers(1, 9))
    names = draw(st.permutations([f"x{i}" for i in range(sum(sides))]))
    liars = {f"x{i}" for i in range(sides[1])}
    equations = []
    for name in names:
        want = Dim.parse(draw(st.sampled_from(FORMS)))
        equations.append(Equation(name, 0, want, want.put({**GROUP, "S": other if name in liars else truth})))
    return equations, liars, truth


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4).flatmap(lambda few: st.tuples(st.integers(few + 1, 6), st.just(few)).flatmap(calls)))
def test_the_minority_is_blamed_and_nobody_else(case: tuple[list[Equation], set[str], Dim]) -> None:
    equations, liars, truth = case
    found = unify(equations, GROUP)
    assert found.rival is None
    assert set(found.best.wrong) == liars
    assert found.best.letters["S"] == truth


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4).map(lambda n: (n, n)).flatmap(calls))
def test_halves_disagree(case: tuple[list[Equation], set[str], Dim]) -> None:
    equations, liars, _ = case
    found = unify(equations, GROUP)
    assert found.rival is not None
    blamed = [set(found.best.wrong), set(found.rival.wrong)]
    assert liars in blamed
    assert blamed[0].isdisjoint(blamed[1])
    assert blamed[0] | blamed[1] == {equation.param for equation in equations}


@settings(max_examples=200, deadline=None)
@given(st.tuples(st.integers(1, 6), st.just(0)).flatmap(calls))
def test_arguments_that_agree_are_never_refused(case: tuple[list[Equation], set[str], Dim]) -> None:
    equations, _, truth = case
    found = unify(equations, GROUP)
    assert (found.best.wrong, found.best.open, found.rival) == ({}, {}, None)
    assert found.best.letters["S"] == truth


POLYNOMIALS = st.dictionaries(
    st.sampled_from([(), ("A",), ("C",), ("A", "C"), ("A", "A"), ("A", "C", "C")]), st.integers(-5, 5), max_size=4
).map(Dim)


@settings(max_examples=300, deadline=None)
@given(POLYNOMIALS, POLYNOMIALS, st.integers(1, 40))
def test_a_quotient_is_exact_or_there_is_none(factor: Dim, other: Dim, rest: int) -> None:
    if not factor.terms:
        assert other.over(factor) is None
        return
    assert (factor * other).over(factor) == other
    quotient = (factor * other + rest).over(factor)
    assert quotient is None or quotient * factor == factor * other + rest
