"""Losses and their gradients against the numbers of other projects: all of them, compared or explained (loss_cases.py)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from loss_cases import (
    ADVANTAGES,
    ALL_ROWS,
    BEYOND,
    COMPARED,
    EXPLAINED_POLICY,
    LOG_RATIO,
    ROWS,
    TOKENS,
    UNBOUNDED,
    WEIGHTS,
    Case,
    row_mean,
)
from peer_numbers import MASK, PEERS, given, peer
from torch import Tensor

from operators.loss import clip_cov, dro, gpg, gspo, kl_cov, kl_penalty, ppo_clip, value_clip
from operators.loss.kl import kl_estimate
from operators.records import PolicyForward, PpoRows
from rlflow import Aggregated
from rlflow.testing import loss_grad, loss_value

FAMILIES = ("policy", "agg", "kl", "value_loss", "loss_reduction")
LOG_PROBS, OLD, REFERENCE = given("log_prob"), given("old_log_prob"), given("ref_log_prob")


def inputs(advantages: Tensor = ADVANTAGES, rows: slice = slice(None)) -> dict[str, Tensor]:
    fields = {"log_probs": LOG_PROBS, "old_log_probs": OLD, "advantages": advantages, "response_mask": MASK, "ref_log_probs": REFERENCE}
    return {name: x[rows] for name, x in fields.items()}


def ours(case: Case) -> tuple[float, Tensor]:
    """Value and gradient to the log-probs, on the scale of the peer."""
    fields = inputs(case.advantages)
    return case.factor * loss_value(case.loss, **fields), case.factor * loss_grad(case.loss, **fields)


def theirs(key: str) -> tuple[float, Tensor]:
    return float(peer(f"{key}/loss")), peer(f"{key}/grad_log_prob")


def same(found: Tensor, expected: Tensor) -> None:
    """1e-5 relative; what is far below the largest number is compared to that."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-7 * float(expected.abs().max()))


# --- policy losses ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", COMPARED)
def test_policy_loss_and_gradient_agree(key: str) -> None:
    value, gradient = ours(COMPARED[key])
    expected, slope = theirs(key)
    assert value == pytest.approx(expected, rel=1e-5)
    same(gradient, slope)


def unbounded(case: Case, scale: float = 1.0) -> tuple[float, Tensor]:
    """What ppo_clip's two tokens beyond ±20 would be without the bound, by the formula: value and gradient that they add to ours."""
    added, slope = 0.0, torch.zeros(MASK.shape, dtype=torch.float64)
    loss: Any = case.loss
    for i, t in BEYOND.nonzero().tolist():
        share = {
            "token-mean": 1 / TOKENS,
            "seq-mean-token-mean": 1 / int(MASK[i].sum()) / ROWS,
            "seq-mean-token-sum-norm": 1 / (loss.constant or 1) / ROWS,
        }[loss.aggregate]
        a, x = float(case.advantages[i, t]), float(LOG_RATIO[i, t])
        assert x > 20
        if a < 0:  # with a > 0 it is clipped at 1.2, with the bound and without
            added += case.factor * scale * share * -a * (math.exp(x) - math.exp(20))
            slope[i, t] = case.factor * scale * share * -a * math.exp(x)
    return added, slope


@pytest.mark.parametrize("key", UNBOUNDED)
def test_peers_without_a_bound_differ_by_the_two_tokens_beyond_it(key: str) -> None:
    """We bound the log-ratio by ±20, as verl and openrlhf do; e^25 a token leaves nothing of the others in float32."""
    case = UNBOUNDED[key]
    value, gradient = ours(case)
    added, slope = unbounded(case)
    assert value + added == pytest.approx(theirs(key)[0], rel=1e-5)
    same(gradient + slope, theirs(key)[1])
    inside = ~BEYOND
    same(gradient[inside], theirs(key)[1][inside])  # not hidden behind the two large ones


def test_trl_adds_the_kl_term_before_it_averages_and_bounds_neither() -> None:
    """Ours: two losses, that are summed. Their k3 is unbounded too, so the two tokens far from the reference are compared by formula."""
    key = "trl/policy/dapo/token/beta0.04"
    case = Case(ppo_clip(), ADVANTAGES[:, :1].expand(MASK.shape))
    penalty = Case(kl_penalty(0.04), case.advantages)
    (value, gradient), (extra, slope) = ours(case), ours(penalty)
    added, more = unbounded(case)
    d = (REFERENCE - LOG_PROBS).double()
    far = MASK & (d > 20)
    k3 = 0.04 / TOKENS * (d.exp() - 1 - d)
    tangent = 0.04 / TOKENS * (math.exp(20) * (d - 19) - 1 - d)
    total = value + extra + added + float((k3 - tangent)[far].sum())
    assert total == pytest.approx(theirs(key)[0], rel=1e-5)
    unbent = torch.zeros_like(d)
    unbent[far] = 0.04 / TOKENS * (math.exp(20) - d[far].exp())
    near = ~(far | BEYOND)
    same((gradient + slope)[near], theirs(key)[1][near])
    same(gradient + slope + more + unbent, theirs(key)[1])


def test_openrlhf_gspo_spreads_a_rows_gradient_over_its_tokens() -> None:
    """We give each token its own advantage's (GSPO-token); with one advantage a row, as in the paper, both are the same."""
    value, gradient = ours(Case(gspo(0.2, 0.2)))
    expected, slope = theirs("openrlhf/policy/gspo")
    assert value == pytest.approx(expected, rel=1e-5)
    same(row_mean(gradient).where(MASK, 0.0), slope)
    assert (gradient - slope).norm() > 0.05 * slope.norm()


@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-mean"])
def test_verl_dro_weighs_the_pull_to_the_old_policy_too(aggregate: Any) -> None:
    """Our pipeline weighs advantages, which leaves the quadratic half as it is: the difference is (w - 1) times that half."""
    value, gradient = ours(Case(dro(0.1, aggregate=aggregate), ADVANTAGES * WEIGHTS))
    without = torch.zeros_like(ADVANTAGES)
    shape = {"response_mask": MASK, "aggregate": aggregate}
    half = averaged((WEIGHTS - 1) * 0.05 * LOG_RATIO**2, **shape)
    expected, slope = theirs(f"verl/policy/dro/{aggregate}/isw")
    assert value + float(half) == pytest.approx(expected, rel=1e-5)
    pull = loss_grad(dro(0.1, aggregate=aggregate), **inputs(without))
    same(gradient + (WEIGHTS - 1).where(MASK, 0.0) * pull, slope)


def averaged(terms: Tensor, response_mask: Tensor, aggregate: str) -> Tensor:
    terms = terms.double().where(response_mask, 0.0)
    if aggregate == "token-mean":
        return terms.sum() / response_mask.sum()
    counts = response_mask.sum(-1)
    return (terms.sum(-1) / counts.clamp(min=1)).sum() / (counts > 0).sum()


@pytest.mark.parametrize("weights", ["none", "isw"])
@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-mean"])
def test_clip_cov_differs_by_the_bound_and_by_which_token_is_drawn(aggregate: Any, weights: str) -> None:
    """verl draws with torch.randperm, in the order of a micro-batch; we by a hash of the token's name. Both draw one, of the same ones."""
    case = Case(clip_cov(aggregate=aggregate), ADVANTAGES * (WEIGHTS if weights == "isw" else 1))
    plain = Case(ppo_clip(aggregate=aggregate), case.advantages)  # clip_cov, if nothing were drawn
    (_, gradient), (value, slope) = ours(case), ours(plain)
    added, more = unbounded(plain)
    full = slope + more
    theirs_value, theirs_slope = theirs(f"verl/policy/clip_cov/{aggregate}/{weights}")
    assert value + added == pytest.approx(theirs_value, rel=1e-5)
    for who, found in (("ours", gradient + more), ("theirs", theirs_slope.double())):
        dropped = (found - full).abs() > 1e-5 * full.abs()
        assert int(dropped.sum()) == 1
        assert (found[dropped] == 0).all()
        assert who == "ours" or bool(candidates()[dropped].all())


def candidates() -> Tensor:
    """1 < cov < 5, by the formula in float64."""
    a, x = ADVANTAGES.double(), LOG_PROBS.double()
    cov = (a - a[MASK].mean()) * (x - x[MASK].mean())
    return MASK & (cov > 1) & (cov < 5)


@pytest.mark.parametrize("weights", ["none", "isw"])
@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-mean"])
def test_kl_cov_differs_by_the_bound_alone(aggregate: Any, weights: str) -> None:
    """The largest covariance is one token, so nothing is drawn; -r A is not clipped, so both tokens beyond ±20 are bounded by us alone.

    verl's weights are on the terms: to weigh advantages, as a pipeline of ours does, leaves the penalty and changes the covariance.
    """
    loss, w = kl_cov(kl_coef=0.1, aggregate=aggregate), (WEIGHTS if weights == "isw" else torch.ones_like(WEIGHTS))
    theirs_value, theirs_slope = theirs(f"verl/policy/kl_cov/{aggregate}/{weights}")
    a, x = ADVANTAGES.double(), LOG_PROBS.double()
    cov = ((a - a[MASK].mean()) * (x - x[MASK].mean())).where(MASK, -math.inf)
    held = torch.zeros_like(MASK)
    held.view(-1)[cov.argmax()] = True
    terms = (-a * LOG_RATIO.double().exp() + held * 0.1 * LOG_RATIO.abs()) * w
    assert float(averaged(terms, MASK, aggregate)) == pytest.approx(theirs_value, rel=1e-5)  # their formula, so that the rest can be said
    gradient = loss_grad(loss, **inputs())
    same((gradient * w)[MASK & ~BEYOND], theirs_slope[MASK & ~BEYOND])
    bounded = terms.where(~BEYOND, (-a * math.exp(20) + held * 0.1 * 20) * w)
    if weights == "none":
        assert loss_value(loss, **inputs()) == pytest.approx(float(averaged(bounded, MASK, aggregate)), rel=1e-5)


# --- aggregation --------------------------------------------------------------------------------------------------------------------
class clamped(Aggregated[PolicyForward, PpoRows]):  # noqa: N801
    """The terms that every peer was given to average."""

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return self.aggregated((forward.log_probs - rows.old_log_probs).clamp(-3, 3), rows)


def mean(aggregate: str, rows: slice = slice(None)) -> float:
    return loss_value(clamped(aggregate=aggregate, constant=32.0), **inputs(rows=rows))  # type: ignore[arg-type]


AGGREGATES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AGREED: dict[str, tuple[str, float]] = {  # key → our aggregation, theirs / ours
    **{f"verl/agg/{aggregate}/local": (aggregate, 1.0) for aggregate in AGGREGATES},  # the width of its mask, 32, is its constant
    "verl/agg/token-sum/local": ("token-mean", TOKENS),  # a sum is no mean: it grows with the batch
    "verl/agg/token-sum/global_micro5": ("token-mean", TOKENS),
    "verl/agg/token-sum/local_micro5": ("token-mean", TOKENS),
    "verl/agg/token-mean/global_micro5": ("token-mean", 1.0),
    **{f"verl/agg/{aggregate}/global_micro5": (aggregate, ALL_ROWS) for aggregate in AGGREGATES[1:]},  # global_batch_size counts all rows
    "openrlhf/agg/token_level1/local": ("token-mean", 1.0),
    "openrlhf/agg/token_level0/local": ("seq-mean-token-mean", 1.0),
    "siirl/agg/token-mean/local": ("token-mean", 1.0),
    "siirl/agg/seq-mean-token-sum/local": ("seq-mean-token-sum", ALL_ROWS),
    "siirl/agg/seq-mean-token-sum-norm/local": ("seq-mean-token-sum-norm", ROWS),  # it takes no mean over rows
}
LOCAL = [f"verl/agg/{aggregate}/local_micro5" for aggregate in AGGREGATES]
NOT_A_NUMBER = {"siirl/agg/seq-mean-token-mean/local", "verl/agg/token-mean/all_masked_local"}


@pytest.mark.parametrize("key", AGREED)
def test_aggregation_agrees(key: str) -> None:
    """Of a peer that was given micro-batches, the sum of its parts."""
    aggregate, factor = AGREED[key]
    assert factor * mean(aggregate) == pytest.approx(float(peer(key).sum()), rel=1e-5)


@pytest.mark.parametrize("key", LOCAL)
def test_L1_what_verl_gets_without_global_counts_are_local_means(key: str) -> None:
    """Five micro-batches, each divided by its own count: their mean depends on the cut. Ours is that of the whole."""
    aggregate = key.split("/")[2]
    parts = [mean(aggregate, slice(i, i + 5)) for i in range(0, 24, 5)]
    assert parts == pytest.approx(peer(key).tolist(), rel=1e-5)
    assert sum(parts) / 5 != pytest.approx(mean(aggregate), rel=1e-2)


def test_siirl_is_nan_with_a_row_that_is_not_trained_and_ours_is_not() -> None:
    assert math.isnan(float(peer("siirl/agg/seq-mean-token-mean/local")))
    assert mean("seq-mean-token-mean") == pytest.approx(float(peer("verl/agg/seq-mean-token-mean/local")), rel=1e-5)


def test_a_batch_without_a_trained_token_is_zero_not_nan() -> None:
    assert math.isnan(float(peer("verl/agg/token-mean/all_masked_local")))
    assert loss_value(clamped(), **{**inputs(), "response_mask": torch.zeros_like(MASK)}) == 0.0


@pytest.mark.parametrize(
    ("reduction", "aggregate", "factor"),
    [
        ("token_mean", "token-mean", 1.0),
        ("sequence_mean", "seq-mean-token-mean", ALL_ROWS),
        ("seq_mean_token_sum_norm", "seq-mean-token-sum-norm", ALL_ROWS),
    ],
)
def test_skyrl_folds_the_same_counts_into_the_advantages(reduction: str, aggregate: Any, factor: float) -> None:
    """The weight of a token's advantage is minus the gradient of -A log π."""
    weighed = -factor * loss_grad(gpg(aggregate=aggregate, constant=32.0), **inputs())
    same(weighed[MASK], peer(f"skyrl/loss_reduction/{reduction}/scaled_adv")[MASK])


def test_L1_skyrls_legacy_mean_is_a_mean_of_local_means() -> None:
    """Kept there for old runs: each micro-batch of six rows weighs the same, however many tokens it has."""
    parts = [-loss_grad(gpg(), **inputs(rows=slice(i, i + 6))) / 4 for i in range(0, 24, 6)]
    same(torch.cat(parts)[MASK], peer("skyrl/loss_reduction/token_mean_legacy/scaled_adv")[MASK])


# --- KL -----------------------------------------------------------------------------------------------------------------------------
def estimate(name: str) -> Tensor:
    straight = name.endswith("+")
    return kl_estimate(LOG_PROBS, REFERENCE, MASK, name.rstrip("+"), straight)  # type: ignore[arg-type]


CUT = {
    "verl": ("k3", "low_var_kl", "k3+"),
    "siirl": ("k3", "low_var_kl"),
    "skyrl": ("k3",),
    "areal": ("k1", "k2", "k3"),
    "openrlhf": ("k1", "k2", "k3"),
}
MATRICES = sorted(key for key in PEERS.files if key.split("/")[1] == "kl" and key.endswith("/mat"))


@pytest.mark.parametrize("key", MATRICES)
def test_kl_estimates_agree_where_peers_do_not_cut_them(key: str) -> None:
    """Some cut k3 at ±10, some every estimator. We cut none: a token that has left the reference keeps its value and its gradient."""
    who, _, name, _ = key.split("/")
    found = estimate(name)
    cut = found.clamp(-10, 10) if name in CUT[who] else found
    same(cut[MASK], peer(key)[MASK])


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "low_var_kl", "k1+", "k3+"])
def test_kl_penalty_and_its_gradient_agree(name: str) -> None:
    loss = kl_penalty(1.0, name.rstrip("+"), name.endswith("+"))  # type: ignore[arg-type]
    value, gradient = TOKENS * loss_value(loss, **inputs()), TOKENS * loss_grad(loss, **inputs())
    expected, slope = theirs(f"verl/kl/{name}")
    over = estimate(name).abs() > 10 if name in CUT["verl"] else torch.zeros_like(MASK)
    assert int(over.sum()) in (0, 2)
    kept = estimate(name) - estimate(name).clamp(-10, 10)
    assert value - float(kept.double().where(over, 0.0).sum()) == pytest.approx(expected, rel=1e-4 if over.any() else 1e-5)
    same(gradient[~over], slope[~over])
    if over.any() and not name.endswith("+"):
        assert (slope[over] == 0).all()
        assert (gradient[over] != 0).all()


# --- the critic ---------------------------------------------------------------------------------------------------------------------
def test_value_clip_agrees() -> None:
    fields = {"values": given("vpreds"), "old_values": given("values"), "returns": given("returns"), "response_mask": MASK}
    loss, _ = peer("verl/value_loss/0.2").tolist()
    rest = {"log_probs": LOG_PROBS, "old_log_probs": OLD, "advantages": ADVANTAGES}
    assert loss_value(value_clip(0.2), **rest, **fields) == pytest.approx(loss, rel=1e-5)


# --- nothing is forgotten -----------------------------------------------------------------------------------------------------------
def test_every_number_of_a_peer_is_compared_or_explained() -> None:
    there = {key for key in PEERS.files if not key.startswith("inputs/") and key.split("/")[1] in FAMILIES}
    policy = {f"{key}/{what}" for key in (*COMPARED, *EXPLAINED_POLICY) for what in ("loss", "grad_log_prob")}
    assert {key for key in there if key.split("/")[1] == "policy"} == policy
    assert not set(COMPARED) & EXPLAINED_POLICY
    assert {key for key in there if key.split("/")[1] == "agg"} == {*AGREED, *LOCAL, *NOT_A_NUMBER}
    penalties = {
        f"verl/kl/{name}/{what}" for name in ("k1", "abs", "k2", "k3", "low_var_kl", "k1+", "k3+") for what in ("loss", "grad_log_prob")
    }
    assert {key for key in there if key.split("/")[1] == "kl"} == set(MATRICES) | penalties
    rest = {f"skyrl/loss_reduction/{r}/scaled_adv" for r in ("token_mean", "sequence_mean", "seq_mean_token_sum_norm", "token_mean_legacy")}
    assert {key for key in there if key.split("/")[1] in ("value_loss", "loss_reduction")} == rest | {"verl/value_loss/0.2"}
