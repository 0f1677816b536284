"""Sums over one row, and what losses make of the terms of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from operators.records import ModelRows, PolicyForward, PpoRows
from rlflow import Aggregated
from rlflow.errors import UsageError

NAN = float("nan")
MASK = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


class Given(Aggregated[PolicyForward, PpoRows]):
    """Terms that the rows carry as advantages."""

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Any:
        return self.aggregated(rows.advantages, rows)


def rows(x: list[list[float]], mask: list[list[int]] = MASK) -> PpoRows:
    values = torch.tensor(x)
    return PpoRows(old_log_probs=values, advantages=values, response_mask=torch.tensor(mask))


X = [[1.0, 9.0, 3.0], [9.0, NAN, 9.0], [NAN, 5.0, 9.0]]


def test_sums_and_means_are_under_the_mask() -> None:
    record = rows(X)
    assert record.row_sum(record.advantages).tolist() == [4.0, 0.0, 5.0]
    assert record.row_mean(record.advantages).tolist() == [2.0, 0.0, 5.0]
    assert record.row_count().tolist() == [2, 0, 1]


def test_nan_outside_the_mask_reaches_no_gradient() -> None:
    x = torch.tensor(X, requires_grad=True)
    record = PpoRows(old_log_probs=x.detach(), advantages=x.detach(), response_mask=torch.tensor(MASK))
    record.row_mean(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_each_token_has_its_rows_value_and_its_position() -> None:
    record = rows(X)
    assert record.per_token(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert record.positions().tolist() == [[0, 1, 2]] * 3


def test_sums_of_whole_numbers_are_as_wide_as_those_are() -> None:
    """2^31 is the first that 32 bits do not hold."""
    found = rows(X).row_sum(torch.full((3, 3), 2**30))
    assert found.tolist() == [2 * 2**30, 0, 2**30]


def test_a_record_without_a_mask_has_no_row_sums() -> None:
    from operators.records import Advantage

    bare = Advantage(advantages=torch.ones(1, 1), returns=torch.ones(1, 1))
    with pytest.raises(UsageError, match="Advantage has no field `response_mask`"):
        bare.row_sum(bare.advantages)


def test_a_bare_record_has_no_statistics() -> None:
    with pytest.raises(UsageError, match=r"PpoRows has no statistics: .* rlflow\.testing\.loss_value"):
        rows(X).statistics()


@pytest.mark.parametrize(
    ("options", "terms", "denominator"),
    [
        ({}, [[1.0, 0.0, 3.0], [0.0] * 3, [0.0, 5.0, 0.0]], "tokens"),
        ({"aggregate": "seq-mean-token-sum"}, [[1.0, 0.0, 3.0], [0.0] * 3, [0.0, 5.0, 0.0]], "rows"),
        ({"aggregate": "seq-mean-token-mean"}, [[0.5, 0.0, 1.5], [0.0] * 3, [0.0, 5.0, 0.0]], "rows"),
        ({"aggregate": "seq-mean-token-sum-norm", "constant": 8}, [[0.125, 0.0, 0.375], [0.0] * 3, [0.0, 0.625, 0.0]], "rows"),
    ],
)
def test_terms_and_denominators_of_the_four_aggregations(options: dict[str, Any], terms: list[list[float]], denominator: str) -> None:
    loss = Given(**options)
    found = loss(PolicyForward(log_probs=torch.zeros(3, 3), entropy=torch.zeros(3, 3)), rows(X))
    assert found.tolist() == terms
    assert loss.denominator == denominator


@pytest.mark.parametrize("constant", [None, 0, -1.0, True, float("inf"), NAN])
def test_a_constant_is_a_number_above_zero(constant: Any) -> None:
    loss = Given(aggregate="seq-mean-token-sum-norm", constant=constant)
    with pytest.raises(UsageError, match=r'Given: aggregate="seq-mean-token-sum-norm" divides by `constant`, .*; it is '):
        loss.aggregated(torch.zeros(3, 3), rows(X))


def test_an_aggregation_that_there_is_not_is_told_which_there_are() -> None:
    with pytest.raises(UsageError, match="aggregate is 'mean'; use token-mean, seq-mean-token-sum, seq-mean-token-mean,"):
        Given(aggregate="mean").aggregated(torch.zeros(3, 3), rows(X))  # type: ignore[arg-type]


def test_the_options_of_a_loss_of_ones_own_come_first() -> None:
    from operators.loss import ppo_clip
    from rlflow.language.loss import rows_of

    loss = ppo_clip(0.2, 0.28)
    assert (loss.clip_low, loss.clip_high, loss.aggregate) == (0.2, 0.28, "token-mean")
    assert rows_of(loss) is PpoRows
    assert not issubclass(PpoRows, ModelRows)
