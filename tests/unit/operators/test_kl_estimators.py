"""The estimators of the KL divergence, and the losses made of them: kl_penalty, opd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from evaluated import forward_of, rows_of

from operators.loss import kl_penalty, opd
from operators.loss.kl import kl_estimate
from operators.loss.terms import drift
from rlflow.errors import UsageError


def penalised(estimator: Any, log_prob: float, reference: float, **options: Any) -> tuple[float, float]:
    """Value and gradient of one token."""
    forward = forward_of(log_probs=[[log_prob]])
    terms = kl_penalty(1.0, estimator, **options)(forward, rows_of(response_mask=[[1]], ref_log_probs=[[reference]]))
    terms.sum().backward()
    return terms.item(), forward.log_probs.grad.item()


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1.0), ("kl", 0.5, 1.0), ("abs", 0.5, 1.0), ("k2", 0.125, 0.5), ("mse", 0.125, 0.5), ("k3", 0.10653066, 0.39346934)],
)
def test_estimators_by_hand(estimator: str, value: float, slope: float) -> None:
    assert penalised(estimator, -1.0, -1.5) == (pytest.approx(value), pytest.approx(slope))


@pytest.mark.parametrize(
    ("estimator", "value"), [("k1", -0.5), ("abs", 0.5), ("k2", 0.125), ("k3", 0.14872127), ("low_var_kl", 0.14872127)]
)
def test_straight_through_keeps_the_value_and_takes_the_unbiased_gradient(estimator: str, value: float) -> None:
    assert penalised(estimator, -1.5, -1.0, straight_through=True) == (pytest.approx(value), pytest.approx(-0.5))


def test_straight_through_gradient_is_that_of_the_divergence_and_k3s_is_not() -> None:
    """Over a whole vocabulary of three: Σ p · d(estimate) against the derivative of Σ p log(p / q) itself."""
    logits = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.2, -0.4], dtype=torch.float64).log_softmax(-1)
    log_p = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - reference)).sum(), logits, retain_graph=True)
    found = {}
    for name, options in {"k2": {}, "k3": {}, "k3 straight": {"straight_through": True}}.items():
        terms = kl_penalty(1.0, name[:2], **options)(  # type: ignore[arg-type]
            type("Forward", (), {"log_probs": log_p.unsqueeze(0)}), rows_of(response_mask=[[1, 1, 1]], ref_log_probs=reference.unsqueeze(0))
        )
        (found[name],) = torch.autograd.grad((log_p.detach().exp() * terms[0]).sum(), logits, retain_graph=True)
    torch.testing.assert_close(found["k2"], exact)
    torch.testing.assert_close(found["k3 straight"], exact)
    assert (found["k3"] - exact).norm() > 0.1 * exact.norm()


@pytest.mark.parametrize("reference", [-400.0, -30.0, 30.0, 400.0])
@pytest.mark.parametrize(("estimator", "straight"), [("k2", False), ("k3", False), ("abs", False), ("k1", True), ("k3", True)])
def test_far_from_the_reference_the_gradient_still_points_to_it(estimator: str, straight: bool, reference: float) -> None:
    value, slope = penalised(estimator, -1.0, reference, straight_through=straight)
    assert math.isfinite(value)
    assert math.isfinite(slope)
    assert slope * (-1.0 - reference) > 0


def test_kl_penalty_refuses_an_estimator_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="kl_penalty: estimator is 'k4'; use k1, kl, abs, k2, mse, k3, low_var_kl"):
        kl_penalty(0.1, "k4")  # type: ignore[arg-type]


@pytest.mark.parametrize("beta", [-0.1, math.nan])
def test_kl_penalty_refuses_a_beta_that_would_leave_it_out_in_silence(beta: float) -> None:
    with pytest.raises(UsageError, match=r"kl_penalty: beta is .*; give a "):
        kl_penalty(beta)


@pytest.mark.parametrize("d", [7e-4, -7e-4, 3e-6])
def test_k3_is_right_where_the_policies_are_close(d: float) -> None:
    """e^d - 1 - d = d² / 2 + d³ / 6 + ...; as written it is a few units of float32's rounding of 1, of either sign."""
    estimate = kl_estimate(torch.zeros(1), torch.tensor([d]), torch.ones(1).bool(), "k3", straight_through=False)
    assert estimate.dtype is torch.float32
    assert estimate.item() == pytest.approx(d**2 / 2 + d**3 / 6, rel=1e-3, abs=1e-12)
    assert drift(torch.tensor([d]), torch.ones(1))["approx_kl"].item() == pytest.approx(d**2 / 2 + d**3 / 6, rel=1e-3, abs=1e-12)


# --- opd ----------------------------------------------------------------------------------------------------------------------------
def taught(**options: Any) -> tuple[float, float]:
    forward = forward_of(log_probs=[[-1.0, -7.0]])
    terms = opd(**options)(forward, rows_of(response_mask=[[1, 0]], teacher_log_probs=[[-1.5, 3.0]]))
    terms.sum().backward()
    assert forward.log_probs.grad[0, 1].item() == 0.0
    return terms.sum().item(), forward.log_probs.grad[0, 0].item()


def test_opd_by_hand() -> None:
    assert taught() == (pytest.approx(0.5), pytest.approx(0.5))
    assert taught(coef=2.0) == (pytest.approx(1.0), pytest.approx(1.0))
    assert taught(estimator="k3", straight_through=False) == (pytest.approx(0.10653066), pytest.approx(0.39346934))


def test_opd_gradient_is_that_of_reinforce_with_the_teachers_verdict_as_reward() -> None:
    forward = forward_of(log_probs=[[-1.0, -0.2, -3.0]])
    teacher = [[-1.5, -0.1, -0.5]]
    opd()(forward, rows_of(response_mask=[[1, 1, 1]], teacher_log_probs=teacher)).sum().backward()
    verdict = [t - s for t, s in zip(teacher[0], [-1.0, -0.2, -3.0], strict=True)]
    assert forward.log_probs.grad[0].tolist() == pytest.approx([-a for a in verdict])


def test_opd_of_k1_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="k1 alone teaches nothing"):
        opd(straight_through=False)


def test_opd_reports_the_distance_to_the_teacher() -> None:
    forward = forward_of(log_probs=[[-1.0, -7.0]])
    rows = rows_of(response_mask=[[1, 0]], teacher_log_probs=[[-1.5, 3.0]])
    assert opd(coef=9.0).metrics(forward, rows)["teacher_kl"].tolist() == [[0.5, 0.0]]
