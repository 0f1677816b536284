"""Records: what is inherited must agree, and aliases of every spelling are read."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import pytest
from typing_extensions import TypeAliasType

from rlflow import CheckFailed, Record, Tensor, dims, f32, i16, roles
from rlflow.language.record import specs_of
from rlflow.language.spec import Role, Spec, size_of, spec_of

B, R = dims("B R")
reward, mask = roles("reward mask")

Rewards: TypeAlias = Annotated[Tensor, f32[B, R], reward]
Shaped = TypeAliasType("Shaped", Annotated[Tensor, f32[B, R], reward("shaped")])


def test_an_alias_has_a_spec() -> None:
    assert spec_of(Rewards) == Spec("f32", (B, R), Role("reward"))
    assert spec_of(Tensor) is None


def test_an_alias_of_pep_695_is_unwrapped() -> None:
    assert spec_of(Shaped) == Spec("f32", (B, R), Role("reward", "shaped"))


def test_a_later_role_refines_an_earlier_one() -> None:
    assert spec_of(Annotated[Rewards, reward("raw")]) == Spec("f32", (B, R), Role("reward", "raw"))


def test_an_integer_binds_a_letter() -> None:
    assert size_of(Annotated[int, B]) == "B"
    assert size_of(int) is None


@pytest.mark.parametrize(
    ("wanted", "given", "fits"),
    [
        (reward, reward("raw"), True),
        (reward("raw"), reward, True),
        (reward("raw"), reward("shaped"), False),
        (reward, mask, False),
        (reward, None, False),
    ],
)
def test_roles_accept(wanted: Role, given: Role | None, fits: bool) -> None:
    assert wanted.accepts(given) is fits


class One(Record):
    rewards: Rewards
    extra: Annotated[Tensor, i16[B]]


class Same(Record):
    rewards: Rewards


class Other(Record):
    rewards: Shaped


def test_fields_are_inherited_in_order() -> None:
    class Both(One, Same): ...

    assert list(specs_of(Both)) == ["rewards", "extra"]


def test_two_meanings_of_one_field_are_refused() -> None:
    with pytest.raises(
        CheckFailed, match=r"`rewards` of `Both` is f32\[B, R\] reward in `One` and f32\[B, R\] reward\(shaped\) in `Other`"
    ):

        class Both(One, Other): ...


def test_an_optional_field_has_the_spec_of_the_field() -> None:
    assert spec_of(Rewards | None) == spec_of(Rewards)
    assert spec_of(Rewards | int) is None
