"""What a function keeps from call to call, read off its bytecode."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import pytest

from rlflow import CheckFailed, RowsT, State, operator
from rlflow.language.keeps import kept_by

seen = 0
log: list[Any] = []
table: dict[Any, Any] = {}
hits: Counter[Any] = Counter()


class Box:
    n = 0
    rows: dict[Any, Any] = {}  # noqa: RUF012


box = Box()


def writes_a_global() -> None:
    global seen
    seen += 1


def appends(x: Any) -> None:
    log.append(x)


def puts(x: Any) -> None:
    table[int(x) + 1] = x


def adds_to_an_item(x: Any) -> None:
    table[x] += 1


def takes_out(x: Any) -> None:
    del table[x]


def counts(x: Any) -> None:
    hits.update(x)


def sets_an_attribute(x: Any) -> None:
    box.n = x


def adds_to_an_attribute(x: Any) -> None:
    box.n += x


def reaches_deep(x: Any) -> None:
    box.rows[x] = 1


def marks_itself(x: Any) -> None:
    marks_itself.last = x  # type: ignore[attr-defined]


def inside(x: Any) -> list[Any]:
    return [log.append(one) for one in x]


def goes_on(x: Any) -> Any:
    yield x


def outer() -> Any:
    count = 0

    def inner() -> int:
        nonlocal count
        count += 1
        return count

    return inner


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (writes_a_global, "writes the global `seen`"),
        (appends, "changes the global `log`"),
        (puts, "changes the global `table`"),
        (adds_to_an_item, "changes the global `table`"),
        (takes_out, "changes the global `table`"),
        (counts, "changes the global `hits`"),
        (sets_an_attribute, "changes the global `box`"),
        (adds_to_an_attribute, "changes the global `box`"),
        (reaches_deep, "changes the global `box`"),
        (marks_itself, "changes the global `marks_itself`"),
        (inside, "changes the global `log`"),
        (goes_on, "is a generator: it goes on where it stopped"),
        (outer(), "writes `count` of an outer function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_kept(fn: Any, says: str) -> None:
    assert kept_by(fn) == says


def reads(x: Any) -> Any:
    return sum(table.get(one, 0) for one in log) + x


def fills_its_own(x: Any, n: int) -> Any:
    mine: dict[Any, Any] = {}
    mine[x] = table.copy()
    mine.update({})
    out = [0.0] * n
    out[n - 1] = 1.0
    out.append(hits[x])
    return mine, out


def sets_of_a_module(x: Any) -> None:
    importlib.loaded = x  # type: ignore[attr-defined]


def its_own_closure() -> int:
    total = 0

    def add() -> None:
        nonlocal total
        total += 1

    add()
    return total


@pytest.mark.parametrize("fn", [reads, fills_its_own, sets_of_a_module, its_own_closure], ids=lambda fn: fn.__name__)
def test_what_is_not_kept(fn: Any) -> None:
    assert kept_by(fn) is None


def running(rows: RowsT) -> RowsT:
    log.append(rows)
    return rows


def test_an_operator_that_keeps_something_has_to_say_so() -> None:
    with pytest.raises(CheckFailed, match="`running` changes the global `log`, and declares no state") as refused:
        operator(per="row")(running)
    assert [d.code for d in refused.value.diagnostics] == ["RLF013"]
    assert operator(per="row", state=(State("log", 8, in_checkpoint=False),))(running)
