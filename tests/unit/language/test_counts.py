"""Counts: which parameters are one, by the kind of their declaration, and what is refused."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from rlflow import CheckFailed, Micro, RowsT, Worker, dims, operator, pipeline
from rlflow.language.counts import COUNTS, counts_of, is_count
from rlflow.language.operator import ROWS, declaration_of

(G,) = dims("G")


@operator(per="row", rows="pack")
def packed(rows: RowsT, *, max_tokens: int, name: str = "") -> Micro[RowsT]:
    raise NotImplementedError


@operator(per="row", rows="expand")
def several(rows: RowsT, *, n: Annotated[int, G]) -> RowsT:
    raise NotImplementedError


@pytest.mark.parametrize(("fn", "name"), [(packed, "max_tokens"), (several, "n")])
def test_a_count_is_told_by_the_kind_of_the_operator_or_by_its_type(fn: Any, name: str) -> None:
    declaration = declaration_of(fn)
    assert declaration is not None
    assert counts_of(declaration).get(name) == 1


def test_the_parameters_that_rows_operators_must_have_are_counts_or_workers() -> None:
    for rows, required in ROWS.items():
        assert set(required) - {"on"} <= COUNTS.get(rows, {}).keys()


@pytest.mark.parametrize(
    ("value", "least", "fits"),
    [(1, 1, True), (0, 1, False), (0, 0, True), (-1, 0, False), (2.0, 1, False), (True, 1, False), (None, 1, False), ("2", 1, False)],
)
def test_is_count(value: object, least: int, fits: bool) -> None:
    assert is_count(value, least) is fits


@pytest.mark.parametrize(
    ("parameter", "value", "says"),
    [
        ("dp", 0, "`dp` of `Torch` is an integer of at least 1, got 0"),
        ("mini_batches", 0, "`multiple` of `pad` is an integer of at least 1, got 0"),
        ("prompts", -3, "`prompts` of `form_batch` is an integer of at least 1, got -3"),
        ("group_size", 0, "`n` of `dispatch` is an integer of at least 1, got 0"),
        ("max_tokens", 0, "`max_tokens` of `micro_pack` is an integer of at least 1, got 0"),
        ("max_lag", -1, "`max_lag` of `Feedback` is an integer of at least 0, got -1"),
        ("eval_every", -1, "`every` of `engine.evaluate` is an integer of at least 0, got -1"),
        ("prompts", 2.5, "`prompts` of `form_batch` is an integer of at least 1, got 2.5"),
    ],
)
def test_a_parameter_of_the_pipeline_that_counts_nothing_is_one_message(parameter: str, value: Any, says: str) -> None:
    from pipelines.grpo import grpo

    other: Any = {"kl": 0.1, parameter: value}  # with a reference: a second worker of as many ranks
    with pytest.raises(CheckFailed) as refused:
        grpo(**other)
    assert [(found.code, found.message) for found in refused.value.diagnostics] == [("RLF015", says)]


def test_the_capacity_of_a_worker_is_a_count() -> None:
    class Engine(Worker):
        def __init__(self, name: str, *, capacity: int) -> None:
            super().__init__(name)

    @pipeline
    def loop(capacity: int) -> None:
        Engine("engine", capacity=capacity)

    with pytest.raises(CheckFailed, match="`capacity` of `Engine` is an integer of at least 1, got 0"):
        loop(0)
