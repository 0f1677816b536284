"""Outside a pipeline everything is plain Python: functions, frozen dataclasses, methods."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import FrozenInstanceError
from typing import Annotated, Any

import pytest

import rlflow
from rlflow import CheckFailed, Feedback, Loss, Micro, Record, RowsT, Tensor, Worker, dims, f32, operator
from rlflow.errors import RlflowError, UsageError
from rlflow.language.feedback import Current, Handle, Next
from rlflow.language.loss import rows_of
from rlflow.language.operator import declaration_of

B, R = dims("B R")
Numbers = Annotated[Tensor, f32[B, R]]


class Pair(Record):
    left: Numbers
    right: Numbers


class Sum(Loss[Pair, Pair]):
    scale: float = 1.0

    def __call__(self, forward: Pair, rows: Pair) -> Any:
        return self.scale * (forward.left + rows.right)


@operator(per="row")
def double(numbers: Numbers, *, by: float = 2.0) -> Numbers:
    """Twice as much."""
    return numbers * by


def test_an_operator_is_the_function() -> None:
    assert double(3, by=5) == 15  # type: ignore[arg-type]
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    found = declaration_of(double)
    assert found is not None
    assert (found.per, found.rows, found.positions) == ("row", "keep", {"numbers": 0})


def test_a_method_binds() -> None:
    class Scorer(Worker):
        @operator(per="row")
        def score(self, numbers: Numbers) -> Numbers:
            return (self.name, numbers)  # type: ignore[return-value]

    assert Scorer("s").score(1) == ("s", 1)  # type: ignore[arg-type, comparison-overlap]


def test_a_record_is_a_frozen_keyword_only_dataclass() -> None:
    pair = Pair(left=1, right=2)  # type: ignore[arg-type]
    assert dataclasses.replace(pair, left=3) == Pair(left=3, right=2)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        pair.left = 4  # type: ignore[misc, assignment]
    with pytest.raises(TypeError):
        Pair(1, 2)  # type: ignore[call-arg, misc]
    with pytest.raises(AttributeError, match="Pair has no field 'middle'"):
        pair.middle  # type: ignore[attr-defined]  # noqa: B018


def test_losses_bind_to_the_parts_of_micro_batches() -> None:
    rows = Pair(left=1, right=2)  # type: ignore[arg-type]
    micro = Micro(rows, parts=((rows, rows),), counts=({"tokens": 4},))
    objective = micro.loss(Sum(3.0))
    assert (objective.rows, objective.parts, objective.counts) == (rows, ((rows, rows),), ({"tokens": 4},))
    assert objective.losses[0](rows, rows) == 9
    assert objective.losses[0].denominator == "tokens"


def test_a_loss_names_its_record_in_its_class_statement() -> None:
    class Derived(Sum): ...

    assert rows_of(Derived()) is Pair


def test_a_handle_says_which_version() -> None:
    handle: Current[Any] = Current("policy", "current", 3)
    assert handle.version == 3
    assert Next(handle.name, "next", handle.version + 1, "me").owner == "me"
    assert isinstance(handle, Handle)


def test_a_feedback_belongs_in_a_pipeline() -> None:
    with pytest.raises(UsageError, match="lives in a pipeline"):
        Feedback("policy", init=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"rows": "pad"}, 'rows="pad" but no parameter `multiple`'),
        ({"rows": "shard"}, 'rows="shard" but no parameter `on`'),
        ({"rows": "form"}, 'rows="form" but no parameter `prompts`'),
        ({"rows": "sort"}, "it is one of keep, expand"),
        ({"per": "rows"}, "it is one of row, group"),
        ({"serves": "engine"}, 'serves="engine" but no such parameter'),
        ({"index": len}, 'index= but rows="keep"'),
        ({"rows": "permute", "index": lambda n: n}, "must be a function at the top of a module"),
        ({"sizes": {B * R: R}}, r"a size for B\*R; only a letter has one"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_at_once(keywords: dict[str, Any], says: str) -> None:
    def plain(rows: RowsT) -> RowsT:
        return rows

    with pytest.raises(CheckFailed, match=says) as refused:
        operator(**{"per": "row", **keywords})(plain)
    assert [d.code for d in refused.value.diagnostics] == ["RLF013"]


def test_everything_raised_is_of_one_tree() -> None:
    assert issubclass(CheckFailed, RlflowError)


def test_the_front_door_is_this_list() -> None:
    users_import = """
        operator pipeline Worker Devices Site State Feedback Record RowsT Micro Objective Loss Weights
        Frozen Current Served Move Next dims fresh roles absent f32 f16 bf16 i64 i32 i16 flag text Tensor Plan CheckFailed Diagnostic
            Difference count Stale RowWeight Aggregate Aggregated
    """
    assert sorted(rlflow.__all__) == sorted(users_import.split())
    assert all(hasattr(importlib.import_module("rlflow"), name) for name in rlflow.__all__)
