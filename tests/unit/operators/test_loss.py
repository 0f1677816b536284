from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from operators.loss import entropy_bonus, kl_penalty, ppo_clip, value_clip

NAN, INF = float("nan"), float("inf")


def tensors(**fields: list[list[float]]) -> Any:
    """Rows: flags for masks, else float64."""
    kinds = {name: torch.bool if "mask" in name else torch.float64 for name in fields}
    return SimpleNamespace(**{name: torch.tensor(value, dtype=kinds[name]) for name, value in fields.items()})


def policy(log_probs: list[list[float]]) -> Any:
    return SimpleNamespace(log_probs=torch.tensor(log_probs, dtype=torch.float64, requires_grad=True))


def ppo_rows(advantages: list[list[float]], mask: list[list[float]], old: list[list[float]] | None = None) -> Any:
    return tensors(advantages=advantages, response_mask=mask, old_log_probs=old or [[0.0] * len(mask[0])] * len(mask))


def log(ratio: float) -> float:
    return float(torch.tensor(ratio, dtype=torch.float64).log())


# --- ppo_clip -------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ratio", "advantage", "term", "slope"),  # slope: d term / d log_prob
    [
        (1.5, 1.0, -1.2, 0.0),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),
        (1.1, 2.0, -2.2, -2.2),
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, term: float, slope: float) -> None:
    forward = policy([[log(ratio)]])
    terms = ppo_clip(0.2, 0.2)(forward, ppo_rows([[advantage]], [[1]]))
    terms.sum().backward()
    assert terms.item() == pytest.approx(term)
    assert forward.log_probs.grad.item() == pytest.approx(slope)


def test_ppo_clip_has_two_bounds() -> None:
    terms = ppo_clip(0.1, 0.3)(policy([[log(2.0), log(0.5)]]), ppo_rows([[1.0, -1.0]], [[1, 1]]))
    assert terms[0].tolist() == pytest.approx([-1.3, 0.9])


def test_aggregate_chooses_the_denominator() -> None:
    assert ppo_clip().denominator == "tokens"
    assert ppo_clip(aggregate="seq-mean-token-sum").denominator == "rows"


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
def test_L17_junk_outside_the_mask_touches_neither_value_nor_gradient(junk: float) -> None:
    mask = [[1, 0]]
    cases: list[tuple[Any, Any, SimpleNamespace]] = [
        (ppo_clip(), policy([[-1.0, -1.0]]), ppo_rows([[2.0, junk]], mask, old=[[-1.0, junk]])),
        (kl_penalty(0.5), policy([[-1.0, -1.0]]), tensors(ref_log_probs=[[-1.5, junk]], response_mask=mask)),
    ]
    for loss, forward, rows in cases:
        terms = loss(forward, rows)
        terms.sum().backward()
        assert terms.isfinite().all()
        assert terms[0, 1] == 0
        assert forward.log_probs.grad.isfinite().all()
        assert forward.log_probs.grad[0, 1] == 0
        assert forward.log_probs.grad[0, 0] != 0
        assert all(value.isfinite().all() for value in loss.metrics(forward, rows).values())


def test_L17_masked_sum_is_three() -> None:
    values = torch.tensor([[1.0, 2.0, NAN]], requires_grad=True)
    terms = entropy_bonus(-1.0)(SimpleNamespace(entropy=values), tensors(response_mask=[[1, 1, 0]]))
    assert terms.sum().item() == 3.0


@pytest.mark.parametrize("log_ratio", [25.0, 500.0, -500.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_stay_finite(log_ratio: float, advantage: float) -> None:
    forward = policy([[log_ratio]])
    terms = ppo_clip()(forward, ppo_rows([[advantage]], [[1]]))
    terms.sum().backward()
    assert terms.isfinite().all()
    assert forward.log_probs.grad.isfinite().all()


def test_L15_fully_masked_rows_keep_the_loss_connected() -> None:
    forward = policy([[-1.0, -2.0]])
    terms = ppo_clip()(forward, ppo_rows([[1.0, 1.0]], [[0, 0]]))
    terms.sum().backward()
    assert terms.sum() == 0
    assert forward.log_probs.grad.tolist() == [[0.0, 0.0]]


def test_ppo_clip_metrics() -> None:
    rows = ppo_rows([[1.0, -1.0, 1.0, 1.0, 9.0]], [[1, 1, 1, 1, 0]])
    got = ppo_clip().metrics(policy([[log(1.5), log(1.5), log(0.5), 0.0, 5.0]]), rows)
    assert got["clip_fraction"].tolist() == [[1, 0, 0, 0, 0]]
    assert got["ppo_kl"].sum().item() == pytest.approx(-log(1.5) * 2 - log(0.5))
    assert got["approx_kl"].sum().item() == pytest.approx(2 * (0.5 - log(1.5)) + (-0.5 - log(0.5)))
    assert not any(value.requires_grad for value in got.values())


# --- kl_penalty -----------------------------------------------------------------------------------------------------------------------
def test_kl_penalty_by_hand() -> None:
    terms = kl_penalty(0.1)(policy([[-1.0]]), tensors(ref_log_probs=[[-1.5]], response_mask=[[1]]))
    assert terms.item() == pytest.approx(0.1 * 0.1065307)  # e^-0.5 + 0.5 - 1


def test_L18_kl_penalty_has_a_gradient_towards_the_reference() -> None:
    for reference, sign in ((-2.0, 1), (-0.5, -1), (60.0, -1), (400.0, -1), (-400.0, 1)):
        forward = policy([[-1.0]])
        kl_penalty(1.0)(forward, tensors(ref_log_probs=[[reference]], response_mask=[[1]])).sum().backward()
        assert forward.log_probs.grad.isfinite().all()
        assert forward.log_probs.grad.item() * sign > 0


def test_kl_penalty_is_smooth_where_exp_becomes_its_tangent() -> None:
    rows = tensors(ref_log_probs=[[0.0, 0.0]], response_mask=[[1, 1]])
    forward = policy([[-20.0 + 1e-9, -20.0 - 1e-9]])
    terms = kl_penalty(1.0)(forward, rows)
    terms.sum().backward()
    assert terms[0, 0].item() == pytest.approx(terms[0, 1].item(), rel=1e-8)
    assert forward.log_probs.grad[0, 0].item() == pytest.approx(forward.log_probs.grad[0, 1].item(), rel=1e-8)


def test_losses_of_weight_zero_are_inactive() -> None:
    assert not kl_penalty(0.0).active
    assert not entropy_bonus(0.0).active
    assert kl_penalty(0.1).active
    assert entropy_bonus(0.01).active
    assert ppo_clip().active


# --- entropy_bonus, value_clip --------------------------------------------------------------------------------------------------------
def test_entropy_bonus_raises_the_entropy() -> None:
    entropy = torch.tensor([[1.5, 7.0]], requires_grad=True)
    terms = entropy_bonus(0.1)(SimpleNamespace(entropy=entropy), tensors(response_mask=[[1, 0]]))
    terms.sum().backward()
    assert terms[0].tolist() == pytest.approx([-0.15, 0.0])
    assert entropy.grad is not None
    assert entropy.grad[0].tolist() == pytest.approx([-0.1, 0.0])


@pytest.mark.parametrize(
    ("new", "old", "target", "term", "slope"),
    [(1.0, 0.0, 0.0, 0.5, 1.0), (1.0, 0.0, 1.0, 0.125, 0.0), (0.3, 0.0, 1.0, 0.245, -0.7), (-1.0, 0.0, 1.0, 2.0, -2.0)],
)
def test_value_clip_by_hand(new: float, old: float, target: float, term: float, slope: float) -> None:
    forward = SimpleNamespace(values=torch.tensor([[new]], requires_grad=True))
    terms = value_clip(0.5)(forward, tensors(values=[[old]], returns=[[target]], response_mask=[[1]]))
    terms.sum().backward()
    assert terms.item() == pytest.approx(term)
    assert forward.values.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("junk", [NAN, INF, 1e30])
def test_value_clip_ignores_junk_outside_the_mask(junk: float) -> None:
    forward = SimpleNamespace(values=torch.tensor([[1.0, 1.0]], requires_grad=True))
    rows = tensors(values=[[0.0, junk]], returns=[[0.0, junk]], response_mask=[[1, 0]])
    terms = value_clip()(forward, rows)
    terms.sum().backward()
    assert terms[0, 1] == 0
    assert forward.values.grad.isfinite().all()
    assert forward.values.grad[0, 1] == 0
    assert all(value.isfinite().all() for value in value_clip().metrics(forward, rows).values())
