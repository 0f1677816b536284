"""A declaration can be checked, but not run: what counts as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlflow import Loss, Record, operator
from rlflow.language.body import has_body


def dots(x: int) -> int: ...  # type: ignore[empty-body]


def documented(x: int, *, y: int = 3) -> int:  # type: ignore[empty-body]
    """Says what it would do."""


def passing(x: int) -> int:  # type: ignore[empty-body]
    pass


def not_implemented(x: int) -> int:
    raise NotImplementedError


def not_implemented_here(x: int) -> int:
    """With a reason."""
    raise NotImplementedError("it lives in the engine")


def nothing(x: int) -> None: ...


def constant(x: int) -> int:
    return 3


def same(x: int) -> int:
    return x


def lazy(x: int) -> int:
    if x:
        raise NotImplementedError
    return x


def refuses(x: int) -> int:
    raise ValueError(x)


class Forward(Record):
    """Nothing."""


class Declared(Loss[Forward, Forward]):
    def __call__(self, forward: Forward, rows: Forward) -> Any: ...


class Inherited(Loss[Forward, Forward]):
    """Takes the base's."""


class Whole(Loss[Forward, Forward]):
    def __call__(self, forward: Forward, rows: Forward) -> Any:
        return forward


@pytest.mark.parametrize("fn", [dots, documented, passing, not_implemented, not_implemented_here, Declared.__call__, Inherited.__call__])
def test_a_declaration_has_no_body(fn: Callable[..., Any]) -> None:
    assert not has_body(fn)


@pytest.mark.parametrize("fn", [nothing, constant, same, lazy, refuses, len, Whole.__call__])
def test_what_does_something_has_one(fn: Callable[..., Any]) -> None:
    assert has_body(fn)


def test_an_operator_is_looked_through() -> None:
    assert not has_body(operator(per="row")(dots))
    assert has_body(operator(per="row")(same))
