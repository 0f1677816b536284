"""Sizes are a ring, `str` and `parse` are inverse, and `put` evaluates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlflow import dims
from rlflow.language.dims import Dim

B, G, P, S = dims("B G P S")

monomials = st.lists(st.sampled_from(["B", "G", "K2", "P", "padded"]), max_size=3).map(lambda letters: tuple(sorted(letters)))
polynomials = st.dictionaries(monomials, st.integers(-9, 9), max_size=4).map(Dim)
points = st.fixed_dictionaries({letter: st.integers(-5, 5) for letter in ["B", "G", "K2", "P", "padded"]})


def value(dim: Dim, at: dict[str, int]) -> int:
    """The polynomial at a point, by hand."""
    total = 0
    for monomial, factor in dim.terms.items():
        term = factor
        for letter in monomial:
            term *= at[letter]
        total += term
    return total


def test_sizes_print_as_they_are_written() -> None:
    assert [str(d) for d in (S - 1, P * G, 8 * P, 1 - S, B * B - 2 * B, Dim.of(0), Dim.of(512), S - S)] == [
        "S - 1",
        "G*P",
        "8*P",
        "-S + 1",
        "-2*B + B*B",
        "0",
        "512",
        "0",
    ]


@given(polynomials)
def test_parse_is_the_inverse_of_str(dim: Dim) -> None:
    assert Dim.parse(str(dim)) == dim


@given(polynomials, polynomials, points)
def test_sums_and_products_agree_with_numbers(a: Dim, b: Dim, at: dict[str, int]) -> None:
    assert value(a + b, at) == value(a, at) + value(b, at)
    assert value(a * b, at) == value(a, at) * value(b, at)
    assert value(a - b, at) == value(a, at) - value(b, at)


@given(polynomials, polynomials)
def test_order_does_not_matter(a: Dim, b: Dim) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert hash(a + b) == hash(b + a)


@given(polynomials, points)
def test_put_numbers_for_all_letters_gives_the_number(dim: Dim, at: dict[str, int]) -> None:
    assert dim.put({letter: Dim.of(n) for letter, n in at.items()}).number == value(dim, at)


@given(polynomials, polynomials, points)
def test_put_a_size_for_a_letter_composes(dim: Dim, inner: Dim, at: dict[str, int]) -> None:
    assert value(dim.put({"B": inner}), at) == value(dim, {**at, "B": value(inner, at)})


def test_letters_without_a_value_stay() -> None:
    assert (P * G - 1).put({"G": Dim.of(8)}) == 8 * P - 1


def test_a_number_equals_its_size() -> None:
    assert Dim.of(7) == 7
    assert hash(Dim.of(7)) == hash(7)
    assert S != 7


def test_single_is_a_lone_letter() -> None:
    assert [d.single for d in (S, S - 1, 2 * S, P * G, Dim.of(3))] == ["S", None, None, None, None]


@pytest.mark.parametrize("text", ["S +", "S % 2", "(S)", "S--1", ""])
def test_parse_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        Dim.parse(text)
