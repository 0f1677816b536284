"""A loss on tensors alone, against sums written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from operators.loss import clip_cov, entropy_bonus, kl_penalty, ppo_clip, value_clip
from operators.records import PolicyForward, PpoRows
from rlflow import Aggregated, Tensor
from rlflow.errors import EngineError, UsageError
from rlflow.testing import loss_grad, loss_value

NAN = float("nan")
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
ADVANTAGES = torch.tensor([[1.0, 2.0, NAN], [4.0, NAN, 9.0], [9.0, 9.0, 9.0]], dtype=torch.float64)
ZERO = torch.zeros(3, 3, dtype=torch.float64)


def given(**changed: Any) -> dict[str, Any]:
    """On policy: every ratio is 1, a term is -A. Row 2 has no trained token."""
    return {"log_probs": ZERO, "old_log_probs": ZERO, "advantages": ADVANTAGES, "response_mask": MASK, **changed}


@pytest.mark.parametrize(
    ("options", "value", "scale"),  # gradient: -A · scale, a row
    [
        ({}, -7 / 3, [1 / 3, 1 / 3]),
        ({"aggregate": "seq-mean-token-sum"}, -7 / 2, [1 / 2, 1 / 2]),
        ({"aggregate": "seq-mean-token-mean"}, -(1.5 + 4) / 2, [1 / 4, 1 / 2]),
        ({"aggregate": "seq-mean-token-sum-norm", "constant": 10}, -7 / 20, [1 / 20, 1 / 20]),
    ],
)
def test_the_four_aggregations(options: dict[str, Any], value: float, scale: list[float]) -> None:
    assert loss_value(ppo_clip(**options), **given()) == pytest.approx(value)
    gradient = loss_grad(ppo_clip(**options), **given())
    expected = [-1 * scale[0], -2 * scale[0], 0, -4 * scale[1], 0, 0, 0, 0, 0]
    assert gradient.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("floats", [torch.float32, torch.float64])
def test_masks_and_numbers_of_any_kind(dtype: torch.dtype, floats: torch.dtype) -> None:
    changed = {"log_probs": ZERO.to(floats), "old_log_probs": ZERO.to(floats), "advantages": ADVANTAGES.to(floats)}
    kinds = given(response_mask=MASK.to(dtype), **changed)
    assert loss_value(ppo_clip(), **kinds) == pytest.approx(-7 / 3)
    assert loss_grad(ppo_clip(), **kinds).dtype is floats


def test_G11_the_rows_of_a_trajectory_weigh_alike_as_those_of_another() -> None:
    """Session A is row 0, B rows 1 to 3: means of row sums 6 and (1 + 2 + 3) / 3, averaged 1 : 1."""
    terms = torch.tensor([[6.0], [1.0], [2.0], [3.0]])
    rows = {"log_probs": terms * 0, "old_log_probs": terms * 0, "advantages": -terms, "response_mask": terms > 0}
    whose = {"uid": ["q", "q", "q", "q"], "traj_uid": [0, 1, 1, 1]}
    loss = ppo_clip(aggregate="seq-mean-token-sum", row_weight="trajectory")
    assert loss_value(loss, **rows, **whose) == pytest.approx((6 + 2) / 2)
    assert loss_grad(loss, **rows, **whose).flatten().tolist() == pytest.approx([3.0, 1 / 6, 1 / 3, 1 / 2])
    assert loss_value(loss, **rows) == pytest.approx(12 / 4)  # every row a trajectory of its own


@pytest.mark.parametrize("loss", [ppo_clip(row_weight="group"), ppo_clip(aggregate="seq-mean-token-mean"), clip_cov()])
def test_everything_is_on_the_device_of_what_is_given(loss: Any) -> None:
    """Whoever makes a tensor without saying where makes it on another device here."""
    with torch.device("meta"):
        found = loss_value(loss, **given(uid=["q", "q", "q"], traj_uid=[0, 0, 1]))
        gradient = loss_grad(loss, **given(uid=["q", "q", "q"], traj_uid=[0, 0, 1]))
    assert math.isfinite(found)
    assert gradient.device == ZERO.device


def test_what_the_forward_fills_in_need_not_be_given() -> None:
    log_probs = ZERO - 1.5
    bare = {name: value for name, value in given(log_probs=log_probs).items() if name != "old_log_probs"}
    assert loss_value(ppo_clip(), **bare) == pytest.approx(-7 / 3)


def test_values_are_the_forwards_and_old_values_the_rows() -> None:
    """v = 1, v_old = 0, G = 0, clip 0.5: 0.5 · max(1, 0.25) = 0.5, gradient v - G = 1."""
    one = torch.ones(1, 1)
    fields = {"values": one, "old_values": one * 0, "returns": one * 0, "response_mask": one.bool()}
    assert loss_value(value_clip(0.5), **fields) == pytest.approx(0.5)
    assert loss_grad(value_clip(0.5), wrt="values", **fields).item() == pytest.approx(1.0)


def test_entropy_has_a_gradient_of_its_own() -> None:
    fields = given(entropy=ZERO + 2.0)
    assert loss_value(entropy_bonus(0.1), **fields) == pytest.approx(-0.2)
    assert loss_grad(entropy_bonus(0.1), wrt="entropy", **fields)[1].tolist() == pytest.approx([-0.1 / 3, 0.0, 0.0])
    assert loss_grad(entropy_bonus(0.1), **fields).abs().sum() == 0


def test_a_loss_that_is_off_and_rows_without_a_trained_token_are_zero() -> None:
    assert loss_value(kl_penalty(0.0), **given()) == 0.0
    nothing = given(response_mask=MASK * 0)
    assert loss_value(ppo_clip(), **nothing) == 0.0
    assert loss_grad(ppo_clip(), **nothing).tolist() == ZERO.tolist()


class Centred(Aggregated[PolicyForward, PpoRows]):
    """Less the mean over the mini-batch, where above it."""

    def first_pass(self, forward: PolicyForward, rows: PpoRows) -> Mapping[str, Tensor]:
        return {"a": rows.advantages}

    def statistic(self, tokens: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"mean": tokens["a"].mean(), "above": tokens["a"] > tokens["a"].mean()}

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        found = rows.statistics()
        terms = (rows.advantages - found["mean"]) * forward.log_probs.where(rows.response_mask.bool(), 0.0).exp()
        return self.aggregated(terms.where(found["above"], 0.0), rows)


def test_a_statistic_is_that_of_the_whole() -> None:
    """A = 1, 2, 4: mean 7/3, only 4 is above: (4 - 7/3) / 3 tokens."""
    assert loss_value(Centred(), **given()) == pytest.approx(5 / 9)
    assert loss_grad(Centred(), **given())[1, 0].item() == pytest.approx(5 / 9)


class Watched(ppo_clip):
    def metrics(self, forward: PolicyForward, rows: PpoRows) -> dict[str, Tensor]:
        assert not torch.is_grad_enabled()
        return super().metrics(forward, rows)


def test_metrics_build_no_graph() -> None:
    assert loss_value(Watched(), **given()) == pytest.approx(-7 / 3)


# --- what is refused --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("loss", "changed", "message"),
    [
        (kl_penalty(0.1), {}, r"the loss reads `ref_log_probs` of the rows, which was not given: give .*, ref_log_probs=\.\.\."),
        (entropy_bonus(0.1), {}, r"the loss reads `entropy` of the forward, which was not given: give loss_value, .*, entropy=\.\.\."),
        (value_clip(), {"values": ZERO, "old_values": ZERO}, r"`returns` of the rows, which was not given"),
        (ppo_clip(), {"advantages": ADVANTAGES[:2]}, r"advantages is \[2, 3\], response_mask \[3, 3\]: both are \[B, R\]"),
        (ppo_clip(), {"advantages": MASK}, r"advantages is of torch\.int64: give float32 or float64"),
        (ppo_clip(), {"advantages": [[1.0]]}, r"advantages is a list, not a tensor"),
        (ppo_clip(), {"uid": [1, 2]}, r"uid has 2 entries for 3 rows"),
        (ppo_clip(aggregate="seq-mean-token-sum-norm"), {}, r"divides by `constant`, a number above 0 .*; it is None"),
    ],
)
def test_what_lacks_is_named(loss: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loss_value(loss, **given(**changed))


def test_wrt_is_an_output_of_the_forward_that_is_given() -> None:
    with pytest.raises(UsageError, match=r"wrt is 'values'; it is one of the forward's outputs that are given: log_probs$"):
        loss_grad(ppo_clip(), wrt="values", **given())


def test_nan_inside_the_mask_is_the_engines_own_error() -> None:
    with pytest.raises(EngineError, match=r"ppo_clip is not finite in row 0 \(uid 0, traj_uid 0\)"):
        loss_value(ppo_clip(), **given(advantages=ADVANTAGES * math.nan))


class Nothing(Aggregated[PolicyForward, PpoRows]):
    """It forgets to return its terms."""

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Any:
        return None


def test_a_loss_without_terms_is_told_what_it_returned() -> None:
    with pytest.raises(
        EngineError, match=r"Nothing returned None; a loss returns terms, a tensor in the shape of response_mask"
    ):
        loss_value(Nothing(), **given())


def test_the_class_of_a_loss_is_no_loss() -> None:
    with pytest.raises(UsageError, match=r"ppo_clip is a class of losses: give one of them, ppo_clip\(\.\.\.\)"):
        loss_value(ppo_clip, **given())  # type: ignore[arg-type]


def test_a_function_is_no_loss() -> None:
    with pytest.raises(UsageError, match=r"is no loss: give an object of a class that derives from rlflow\.Loss"):
        loss_grad(lambda forward, rows: forward.log_probs, **given())  # type: ignore[arg-type]
