"""Sizes of results: a parameter's, an argument's, a declared one, and those that are read off; what was declared is held to."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import torch

from rlflow import Record, Tensor, dims, f32, fresh, i64, operator, pipeline, roles
from rlflow.compile.ir import Field, Node
from rlflow.data.column import Column
from rlflow.errors import DataError
from rlflow.run.letters import sizes_of

P, T, B, Q, S, K, L = dims("P T B Q S K L")
ids, score = roles("ids score")
Ids = Annotated[Tensor, i64[P, Q], ids]
Leaves = Annotated[Tensor, i64[T, S], ids]


class Answers(Record):
    leaves: Leaves


@operator(per="row", sizes={P: fresh(), Q: fresh()})
def source() -> Ids: ...  # type: ignore[empty-body]


@operator(per="row")
def judge(x: Ids, *, aspects: Annotated[int, K]) -> Annotated[Tensor, f32[P, K], score]: ...  # type: ignore[empty-body]


@operator(per="row", sizes={K: fresh(at_most=2 * Q)})
def tagged(x: Ids) -> Annotated[Tensor, f32[P, K], score]: ...  # type: ignore[empty-body]


@operator(per="row", sizes={T: P, S: fresh()})
def answered(x: Ids) -> Answers: ...  # type: ignore[empty-body]


@operator(per="row", sizes={T: fresh(at_most=P * L), S: fresh()})
def branched(x: Ids, *, branches: Annotated[int, L]) -> Answers: ...  # type: ignore[empty-body]


@pipeline
def loop() -> None:
    x = source()
    judge(x, aspects=3)
    tagged(x)
    answered(x)
    branched(x, branches=2)


PLAN = loop()
PROMPTS = Column.ragged("i64", [[1, 2, 3], [4, 5]])


def sizes(name: str, result: Any) -> Any:
    node: Node = next(n for n in PLAN.graph.nodes if n.name == name)
    (field,) = (PLAN.graph.fields[out] for out in node.outs)
    made: list[tuple[Field, Any]] = [(field, result)]
    return sizes_of(node, {use.field: PROMPTS for use in node.uses}, made)


def test_a_parameter_tells_a_size() -> None:
    found = sizes("judge", torch.zeros(2, 3))
    assert (found.width(K), found.per_row(K), found.width(Q)) == (3, False, 3)


def test_a_size_of_the_run_is_read_off_the_result() -> None:
    assert sizes("tagged", torch.zeros(2, 5)).of(K).tolist() == [5, 5]


def test_a_result_beyond_its_bound_is_an_error() -> None:
    assert sizes("tagged", torch.zeros(2, 6)).width(K) == 6
    with pytest.raises(DataError, match=r"`tagged` made K = 7 where at most 2\*Q = 6 is declared"):
        sizes("tagged", torch.zeros(2, 7))


def test_as_many_rows_as_declared() -> None:
    assert sizes("answered", torch.zeros(2, 9)).rows == 2
    with pytest.raises(DataError, match=r"`answered` made 3 rows where T = P = 2 is declared"):
        sizes("answered", torch.zeros(3, 9))


def test_rows_beyond_their_bound_are_an_error() -> None:
    assert sizes("branched", torch.zeros(4, 9)).rows == 4
    with pytest.raises(DataError, match=r"`branched` made T = 5 where at most L\*P = 4 is declared"):
        sizes("branched", torch.zeros(5, 9))


def test_the_compiler_knows_the_bounds() -> None:
    assert {letter: str(size) for letter, size in PLAN.facts.bounds.items()} == {"K": "2*Q", "T": "2*P"}
