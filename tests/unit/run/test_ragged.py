"""`@operator(ragged=True)`: columns in as they lie, columns out; nothing is padded for it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from small_loop import interpreter_of, small

from operators.advantage import reinforce
from operators.fields import ResponseMask, TokenRewards, Uid
from operators.records import Advantage
from operators.shaping import overlong_penalty
from rlflow import operator
from rlflow.compile.plan import Plan
from rlflow.data.column import Column
from rlflow.errors import DataError
from rlflow.language.diagnostic import CheckFailed
from rlflow.run import interpret

MASK = Column.ragged("flag", [[False, True, True], [True], [], [True, False]])
REWARDS = Column.ragged("f32", [[9.0, 0.0, 1.0], [0.0], [], [0.5, 7.0]])
GIVEN = {
    "token_level_rewards": REWARDS,
    "response_mask": MASK,
    "uid": Column.scalars("i64", [4, 4, 4, 5]),
    "traj_uid": Column.scalars("i64", [0, 1, 2, 0]),
}


def run(plan: Plan, name: str) -> dict[str, Column]:
    view, interpreter = interpreter_of(plan)
    node = next(n for n in view.needed if n.name == name)
    columns = {use.field: GIVEN[use.param] for use in node.uses}
    made, _ = interpreter.run(node, columns, version=0)
    return {view.graph.fields[i].name: column for i, column in made.items()}


def with_estimator(fn: Any) -> Plan:
    return small().replace("grpo", fn)


def test_estimators_run_on_columns_and_nothing_of_tokens_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    padded: list[Column] = []
    to_torch = interpret.to_torch
    monkeypatch.setattr(interpret, "to_torch", lambda column: (padded.append(column), to_torch(column))[1])
    made = run(small(), "grpo")
    assert [row for column in padded for row in column.to_list()] == [4, 4, 4, 5, 0, 1, 2, 0]  # uid and traj_uid
    expected = [[0.0, 0.7071058, 0.7071058], [-0.7071058], [], [0.0, 0.0]]
    assert [pytest.approx(row) for row in expected] == made["advantages"].to_list()


@operator(per="row", ragged=True)
def looks(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    rewards = cast(Any, token_level_rewards)
    assert type(rewards) is Column
    assert rewards.values.ctypes.data == REWARDS.values.ctypes.data  # the very memory
    assert torch.equal(uid, torch.tensor([4, 4, 4, 5]))
    return Advantage(advantages=token_level_rewards, returns=token_level_rewards)


def test_a_column_is_handed_over_without_a_copy_and_an_input_that_is_returned_is_copied() -> None:
    made = run(with_estimator(looks), "looks")
    assert made["advantages"] == REWARDS
    assert not np.shares_memory(made["advantages"].values, REWARDS.values)
    assert not np.shares_memory(cast(Any, made["advantages"].offsets), cast(Any, REWARDS.offsets))


@operator(per="row", ragged=True)
def writes(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    column: Any = token_level_rewards
    column.values[0] = 3.0
    raise AssertionError


def test_write_once_a_column_that_is_given_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        run(with_estimator(writes), "writes")
    assert REWARDS.to_list()[0] == [9.0, 0.0, 1.0]


def answering(*rows: list[float], dtype: str = "f32") -> Any:
    return Column.ragged(dtype, rows)


@operator(per="row", ragged=True)
def too_short(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    column = answering([1.0, 1.0, 1.0], [1.0], [], [1.0])
    return Advantage(advantages=column, returns=column)


@operator(per="row", ragged=True)
def too_few(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    column = answering([1.0, 1.0, 1.0], [1.0])
    return Advantage(advantages=column, returns=column)


@operator(per="row", ragged=True)
def half(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    column = answering([1.0, 1.0, 1.0], [1.0], [], [1.0, 1.0], dtype="f16")
    return Advantage(advantages=column, returns=column)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (too_short, r"result of `too_short`: `advantages` is declared f32\[B, S - 1\]: row 3 has 1 where S - 1 = 2"),
        (too_few, r"result of `too_few`: `advantages` is declared f32\[B, S - 1\] with 4 rows, got a f32 column of 2"),
        (half, r"result of `half`: `advantages` is declared f32\[B, S - 1\] with 4 rows, got a f16 column of 4"),
    ],
)
def test_a_column_that_is_not_as_declared_is_refused(estimator: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(with_estimator(estimator), estimator.__name__)


@operator(per="row", ragged=True)
def in_a_tensor(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    return Advantage(advantages=torch.ones(4, 3), returns=torch.ones(4, 3))


def test_it_may_return_padded_tensors_all_the_same() -> None:
    assert run(with_estimator(in_a_tensor), "in_a_tensor")["returns"].to_list() == [[1.0, 1.0, 1.0], [1.0], [], [1.0, 1.0]]


def test_operators_that_move_rows_are_not_given_columns() -> None:
    with pytest.raises(CheckFailed, match=r'has ragged=True, rows="filter"'):

        @operator(per="group", rows="filter", ragged=True)
        def keeps(rows: Advantage) -> Advantage:
            return rows


def with_penalty(token_level_rewards: TokenRewards, response_mask: ResponseMask) -> Advantage:
    return reinforce(overlong_penalty(token_level_rewards, response_mask, limit=2, buffer=1), response_mask)


def test_rewards_are_shaped_on_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trained tokens are one over limit - buffer: the whole penalty. One is none."""
    monkeypatch.setattr(interpret, "to_torch", lambda column: pytest.fail(f"padded {column.to_list()}"))
    assert run(with_estimator(with_penalty), "overlong_penalty").popitem()[1].to_list() == [[0.0, 0.0, 0.0], [0.0], [], [0.5, 0.0]]
