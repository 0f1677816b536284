"""Importance weights and rejection, by hand: log-ratios are written as old log-probs against a rollout of 0."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch

from operators.mismatch import (
    anchor_on_rollout,
    importance_weighted,
    reject_rows,
    reject_tokens,
    self_normalized_importance,
    truncated_importance,
)
from rlflow.data.column import Column
from rlflow.errors import DataError, UsageError
from rlflow.measure import collected

NAN = float("nan")
ALL = [importance_weighted, self_normalized_importance, truncated_importance]


def weights(log_ratios: list[list[float]], operator: Any = importance_weighted, mask: list[list[int]] | None = None, **options: Any) -> Any:
    """The weights that an operator puts on advantages of 1."""
    old = torch.tensor(log_ratios)
    shown = torch.ones(old.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    return operator(torch.ones(old.shape), old, torch.zeros(old.shape), shown, **options).tolist()


def kept(log_ratios: list[list[float]], operator: Any, mask: list[list[int]] | None = None, **options: Any) -> Any:
    old = torch.tensor(log_ratios)
    shown = torch.ones(old.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    return operator(shown, old, torch.zeros(old.shape), **options).int().tolist()


# --- weights --------------------------------------------------------------------------------------------------------------------------
def test_truncated_importance_by_hand() -> None:
    old, rollout = torch.tensor([[-1.0, -1.0, NAN]]), torch.tensor([[-1.5, -3.0, 0.0]])
    got = truncated_importance(torch.tensor([[2.0, -1.0, NAN]]), old, rollout, torch.tensor([[True, True, False]]))
    assert got[0].tolist() == pytest.approx([2 * 1.6487213, -2.0, 0.0])


@pytest.mark.parametrize("cap", [0.0, -1.0, NAN])
def test_a_cap_that_bounds_no_weight_is_refused_by_its_name(cap: float) -> None:
    with pytest.raises(UsageError, match=rf"truncated_importance: cap is {cap}; give a number above 0"):
        weights([[0.1]], truncated_importance, cap=cap)


def test_anchor_on_rollout_is_the_sampling_policy() -> None:
    rollout = torch.tensor([[-1.0, 0.0]])
    anchor = anchor_on_rollout(rollout)
    assert anchor.tolist() == [[-1.0, 0.0]]
    assert anchor.data_ptr() != rollout.data_ptr()


@pytest.mark.parametrize(
    ("level", "expected"),
    [("token", [1.4918247, 1.2214028, 0.0]), ("sequence", [1.8221188, 1.8221188, 0.0]), ("geometric", [1.3498588, 1.3498588, 0.0])],
)
def test_levels_of_one_row_by_hand(level: str, expected: list[float]) -> None:
    """e^0.4 and e^0.2; e^(0.4 + 0.2); e^((0.4 + 0.2) / 2). The third token is a tool's: its log-ratio is in no sum and no mean."""
    assert weights([[0.4, 0.2, 5.0]], mask=[[1, 1, 0]], level=level)[0] == pytest.approx(expected)


def test_a_weight_outside_the_band_is_the_bound_or_zero() -> None:
    ratios = [[math.log(r) for r in (0.25, 1.0, 1.5, 4.0)]]
    assert weights(ratios, low=0.5, high=2.0)[0] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert weights(ratios, low=0.5, high=2.0, outside="zero")[0] == pytest.approx([0.0, 1.0, 1.5, 0.0])


def test_the_bound_is_on_train_over_rollout_and_not_its_inverse() -> None:
    """The trainer finds the first token three times as likely as the engine did, the second a third as likely."""
    ratios = [[math.log(3.0), math.log(1 / 3)]]
    assert weights(ratios, high=2.0)[0] == pytest.approx([2.0, 1 / 3])
    assert weights(ratios, low=0.5, high=3.5, outside="zero")[0] == pytest.approx([3.0, 0.0])
    assert kept(ratios, reject_tokens, low=0.5, high=3.5) == [[1, 0]]
    assert kept([[r] for r in ratios[0]], reject_rows, low=0.5, high=3.5) == [[1], [0]]


def test_self_normalized_weights_of_tokens_have_mean_one_over_the_batch() -> None:
    """Weights 2, 2 (truncated), 1, 1 of four trained tokens in two rows: mean 1.5."""
    got = weights([[math.log(2.0), 3.0, 0.0], [0.0, 9.0, 9.0]], self_normalized_importance, mask=[[1, 1, 1], [1, 0, 0]])
    assert [w for row in got for w in row] == pytest.approx([4 / 3, 4 / 3, 2 / 3, 2 / 3, 0.0, 0.0])


def test_self_normalized_weights_of_rows_count_each_row_once() -> None:
    """Weights 2 (three tokens) and 1 (one token): mean 1.5 over two rows, not 1.75 over four tokens; the third row trains nothing."""
    ratios = [[math.log(2.0), 0.0, 0.0], [0.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    got = weights(ratios, self_normalized_importance, mask=[[1, 1, 1], [1, 0, 0], [0, 0, 0]], level="sequence")
    assert got[0] == pytest.approx([4 / 3] * 3)
    assert got[1:] == [pytest.approx([2 / 3, 0.0, 0.0]), [0.0, 0.0, 0.0]]


def test_self_normalized_weights_that_are_all_zero_stay_zero() -> None:
    assert weights([[5.0, 5.0]], self_normalized_importance, outside="zero") == [[0.0, 0.0]]


@pytest.mark.parametrize("operator", ALL)
def test_what_stands_outside_the_mask_is_not_read(operator: Any) -> None:
    outside = torch.tensor([[0.1, NAN]])
    mask = torch.tensor([[True, False]])
    got = operator(torch.tensor([[1.0, NAN]]), outside, torch.zeros(1, 2), mask)
    assert got[0, 1] == 0.0
    assert got[0, 0].isfinite()


@pytest.mark.parametrize("operator", ALL)
def test_a_log_prob_that_is_none_inside_the_mask_is_refused_and_named(operator: Any) -> None:
    old = torch.tensor([[0.0, 0.0], [0.0, NAN]])
    with pytest.raises(DataError, match="log-probs of row 1 hold NaN"):
        operator(torch.ones(2, 2), old, torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("operator", ALL)
def test_masks_may_come_as_numbers_and_results_are_float32(operator: Any) -> None:
    got = operator(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[1, 0]]))
    assert got.dtype == torch.float32
    assert got.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_log_ratios_of_a_thousand_overflow_nothing(level: str) -> None:
    got = weights([[1e3, 1e3], [-1e3, -1e3]], level=level, high=1e30)
    assert got[0] == pytest.approx([math.exp(20)] * 2)
    assert got[1] == pytest.approx([math.exp(-20)] * 2)


@pytest.mark.parametrize(("low", "high"), [(2.0, 0.5), (-1.0, 2.0), (1.0, 1.0), (0.0, NAN)])
def test_bounds_that_are_no_band_are_refused(low: float, high: float) -> None:
    with pytest.raises(UsageError, match="0 <= low < high"):
        weights([[0.0]], low=low, high=high)
    with pytest.raises(UsageError, match="0 <= low < high"):
        kept([[0.0]], reject_tokens, low=low, high=high)


@pytest.mark.parametrize("operator", [*ALL, partial(reject_tokens, high=1.3), partial(reject_rows, high=1.3)])
def test_every_layout_gives_the_same(operator: Any) -> None:
    """Right-padded, jagged, Columns: three rows of 3, 1 and 2 tokens, the last without a trained one."""
    rows = [[0.1, 0.5, 0.2], [0.3], [9.0, 9.0]]
    shown = [[True, False, True], [True], [False, False]]
    named = {"old": rows, "rollout": [[0.0] * len(row) for row in rows]}
    weighs = operator in ALL
    columns: list[Any] = [*(Column.ragged("f32", row) for row in named.values()), Column.ragged("flag", shown)]
    jagged = [torch.nested.nested_tensor([torch.tensor(x) for x in row], layout=torch.jagged) for row in (*named.values(), shown)]
    filled: Any = ((rows, 7.0), (named["rollout"], 5.0), (shown, False))
    padded = [torch.tensor([row + [fill] * (3 - len(row)) for row in of]) for of, fill in filled]

    def call(old: Any, rollout: Any, mask: Any) -> Any:
        return operator(old, old, rollout, mask) if weighs else operator(mask, old, rollout)

    expected = call(*padded).tolist()
    assert expected[2] == [0, 0, 0]
    assert expected[0][1] == 0
    got = call(*jagged)
    assert got.is_nested
    assert [row.tolist() for row in got.unbind()] == [expected[i][: len(row)] for i, row in enumerate(rows)]
    column = call(*columns)
    assert column.dtype == ("f32" if weighs else "flag")
    assert column.to_list() == [pytest.approx(expected[i][: len(row)]) for i, row in enumerate(rows)]


@pytest.mark.parametrize(("operator", "option", "choices"), [
    (importance_weighted, "level", "token, sequence, geometric"), (importance_weighted, "outside", "truncate, zero"),
    (reject_tokens, "by", "ratio, k2, k3"), (reject_rows, "over", "sum, mean, max"),
])  # fmt: skip
def test_an_option_that_there_is_not_is_refused(operator: Any, option: str, choices: str) -> None:
    """`level="geo"` is no row's product."""
    given: Any = {"high": 2.0, "log_ratios": [[0.0]], option: "geo"}
    run: Any = weights if operator is importance_weighted else kept
    with pytest.raises(UsageError, match=f"{option}='geo': it is one of {choices}"):
        run(operator=operator, **given)


# --- rejection ------------------------------------------------------------------------------------------------------------------------
def test_tokens_outside_the_band_leave_the_mask() -> None:
    assert kept([[math.log(r) for r in (0.4, 1.0, 1.9, 2.1)]], reject_tokens, low=0.5, high=2.0) == [[0, 1, 1, 0]]


def test_tokens_by_k2_and_k3_by_hand() -> None:
    """log r = 0.4: k2 0.08, k3 e^0.4 - 1.4 = 0.0918. log r = -0.4: k2 0.08, k3 e^-0.4 - 0.6 = 0.0703."""
    assert kept([[0.4, -0.4, 0.5]], reject_tokens, by="k2", high=0.085) == [[1, 1, 0]]
    assert kept([[0.4, -0.4, 0.5]], reject_tokens, by="k3", high=0.085) == [[0, 1, 0]]


@pytest.mark.parametrize(("over", "expected"), [("mean", 1), ("sum", 0), ("max", 1)])
def test_rows_by_their_ratio(over: str, expected: int) -> None:
    """Log-ratios 0.4, 0.2: geometric mean e^0.3 = 1.35, product e^0.6 = 1.82, largest e^0.4 = 1.49."""
    assert kept([[0.4, 0.2]], reject_rows, over=over, high=1.5) == [[expected] * 2]


def test_ratios_that_cancel_have_a_mean_of_one_and_a_veto_sees_them() -> None:
    assert kept([[3.0, -3.0]], reject_rows, over="mean", low=0.99, high=1.01) == [[1, 1]]
    assert kept([[3.0, -3.0]], reject_rows, over="max", low=0.1, high=10.0) == [[0, 0]]


@pytest.mark.parametrize(("over", "bound"), [("sum", 0.1), ("mean", 0.05), ("max", 0.08)])
def test_rows_by_k2(over: str, bound: float) -> None:
    """k2 of 0.4 and 0.2 is 0.08 and 0.02: sum 0.1, mean 0.05, largest 0.08. The 9 is a tool's."""
    rows, mask = [[0.4, 9.0, 0.2]], [[1, 0, 1]]
    assert kept(rows, reject_rows, mask, by="k2", over=over, high=bound * 1.001) == [[1, 0, 1]]
    assert kept(rows, reject_rows, mask, by="k2", over=over, high=bound * 0.999) == [[0, 0, 0]]


def test_what_is_rejected_is_counted_and_a_row_that_trains_nothing_is_in_no_count() -> None:
    collected()
    kept([[0.0, 0.0], [9.0, 0.0], [9.0, 9.0]], reject_rows, [[1, 1], [1, 1], [0, 0]], over="max", high=2.0)
    assert collected() == {"rejected_rows": 1.0, "kept_rows": 1.0, "rejected_tokens": 2.0, "kept_tokens": 2.0}
    kept([[0.0, 9.0]], reject_tokens, high=2.0)
    assert collected() == {"rejected_tokens": 1.0, "kept_tokens": 1.0}


def test_a_batch_without_a_trained_token_is_no_error() -> None:
    assert kept([[9.0]], reject_rows, [[0]], high=2.0) == [[0]]
    assert weights([[9.0]], self_normalized_importance, [[0]]) == [[0.0]]
    assert weights([[9.0]], importance_weighted, [[0]], level="geometric") == [[0.0]]


def test_mismatch_does_not_import_torch() -> None:
    code = "import operators.mismatch, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
