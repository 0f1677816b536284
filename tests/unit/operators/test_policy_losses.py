"""Every policy loss against its formula, written again as a loop in Python (plain_losses.py): value and gradient, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plain_losses as plain
import pytest
import torch
from evaluated import forward_of, mean_of, rows_of
from torch import Tensor

from operators.loss import cispo, dppo, dro, gmpo, gpg, gspo, ppo_clip, sapo, topr
from rlflow.errors import UsageError

NAN = float("nan")
MASK = [[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]  # tool gaps, a row that is not trained, pads
ROWS = range(len(MASK))
LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., list[Tensor]], dict[str, float]]] = {
    "ppo_clip": (ppo_clip, plain.ppo_clip, {}),
    "ppo_clip higher": (lambda **k: ppo_clip(0.1, 0.4, **k), plain.ppo_clip, {"low": 0.1, "high": 0.4}),
    "ppo_clip dual": (lambda **k: ppo_clip(dual_clip=1.5, **k), plain.ppo_clip, {"dual": 1.5}),
    "cispo": (cispo, plain.cispo, {}),
    "cispo narrow": (lambda **k: cispo(0.2, 0.2, **k), plain.cispo, {"low": 0.2, "high": 0.2}),
    "sapo": (sapo, plain.sapo, {}),
    "sapo hard": (lambda **k: sapo(2.0, 3.0, **k), plain.sapo, {"tau_pos": 2.0, "tau_neg": 3.0}),
    "dppo tv": (lambda **k: dppo(low=0.05, high=0.1, **k), plain.dppo, {"low": 0.05, "high": 0.1}),
    "dppo kl": (lambda **k: dppo("kl", low=0.02, high=0.03, **k), plain.dppo, {"divergence": "kl", "low": 0.02, "high": 0.03}),
    "gpg": (gpg, plain.gpg, {}),
    "dro": (dro, plain.dro, {}),
    "gspo": (gspo, plain.gspo, {}),
    "gspo wide": (lambda **k: gspo(0.2, 0.2, **k), plain.gspo, {"low": 0.2, "high": 0.2}),
    "gmpo": (gmpo, plain.gmpo, {}),
    "topr": (topr, plain.topr, {}),
}


def drawn(seed: int, spread: float = 0.6) -> dict[str, Tensor]:
    """Log-probs below 0, others near them; advantages of both signs and of 0; NaN outside the mask."""
    generator = torch.Generator().manual_seed(seed)
    noise = lambda scale: scale * torch.randn(5, 5, generator=generator, dtype=torch.float64)  # noqa: E731
    log_probs = -0.1 - noise(1.0).abs()
    fields = {"log_probs": log_probs, "advantages": noise(1.0)}
    fields |= {name: (log_probs + noise(spread)).clamp(max=-0.01) for name in ("old_log_probs", "rollout_log_probs")}
    fields["advantages"][2, 2] = 0.0
    return {name: x.where(torch.tensor(MASK) > 0, NAN) for name, x in fields.items()}


def by_formula(
    fields: dict[str, Tensor], formula: Callable[..., list[Tensor]], options: dict[str, Any], **how: Any
) -> tuple[Tensor, Tensor]:
    """Value, and gradient to the log-probs."""
    leaves = {(i, t): fields["log_probs"][i, t].clone().requires_grad_() for i in ROWS for t in ROWS if MASK[i][t]}
    terms = []
    for i in ROWS:
        trained = [t for t in ROWS if MASK[i][t]]
        row = {name: [x[i, t].item() for t in trained] for name, x in fields.items() if name != "log_probs"}
        if trained:
            terms.append(formula([leaves[i, t] for t in trained], row, **options))
    value = plain.average(terms, **how)
    value.backward()
    gradient = torch.zeros(5, 5, dtype=torch.float64)
    for place, leaf in leaves.items():
        gradient[place] = 0.0 if leaf.grad is None else leaf.grad
    return value.detach(), gradient


def by_loss(fields: dict[str, Tensor], loss: Any) -> tuple[Tensor, Tensor]:
    forward, rows = forward_of(log_probs=fields["log_probs"].tolist()), rows_of(response_mask=MASK, **fields)
    value = mean_of(loss, loss(forward, rows), rows)
    value.backward()
    return value.detach(), forward.log_probs.grad


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_policy_loss_is_its_formula(name: str, aggregate: Any) -> None:
    loss, formula, options = LOSSES[name]
    for seed in range(4):
        fields = drawn(seed)
        value, gradient = by_loss(fields, loss(aggregate=aggregate, constant=7.0))
        expected, slope = by_formula(fields, formula, options, aggregate=aggregate, constant=7.0)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient, slope, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_policy_loss_far_from_the_old_policy_is_its_formula(name: str) -> None:
    loss, formula, options = LOSSES[name]
    fields = drawn(9, spread=0.0)
    for i, t, distance in ((0, 0, 25.0), (0, 2, -25.0), (2, 1, 25.0), (2, 3, -25.0), (3, 0, 25.0), (4, 1, 21.0)):
        for other in ("old_log_probs", "rollout_log_probs"):
            fields[other][i, t] = -26.0 if distance > 0 else -0.5
        fields["log_probs"][i, t] = fields["old_log_probs"][i, t] + distance
    value, gradient = by_loss(fields, loss())
    default = loss().aggregate
    expected, slope = by_formula(fields, formula, options, aggregate=default)
    assert value.isfinite()
    assert gradient.isfinite().all()
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-8, atol=1e-10)


# --- the numbers of the docstrings ----------------------------------------------------------------------------------------------------
def terms(loss: Any, log_probs: list[float], advantages: list[float], old: list[float], **more: Any) -> tuple[list[float], list[float]]:
    """Terms and the gradient of their sum, of one row whose tokens are all trained."""
    forward = forward_of(log_probs=[log_probs])
    rows = rows_of(response_mask=[[1] * len(old)], advantages=[advantages], old_log_probs=[old], rollout_log_probs=[old], **more)
    found = loss(forward, rows)
    found.sum().backward()
    return found[0].tolist(), forward.log_probs.grad[0].tolist()


def near(*numbers: float) -> Any:
    return pytest.approx(list(numbers), abs=6e-5)


def test_ppo_clip_dual_clip_bounds_the_term_of_a_negative_advantage() -> None:
    five = 1.6094379
    assert terms(ppo_clip(), [five], [-1.0], [0.0]) == (near(5.0), near(5.0))
    assert terms(ppo_clip(dual_clip=3.0), [five, five, 0.0], [-1.0, 1.0, -2.0], [0.0, 0.0, 0.0]) == (
        near(3.0, -1.2, 2.0),
        near(0.0, 0.0, 2.0),
    )


@pytest.mark.parametrize("bad", [1.0, 0.5, -3.0])
def test_ppo_clip_refuses_a_dual_clip_that_would_stop_every_push_down(bad: float) -> None:
    with pytest.raises(UsageError, match=f"dual_clip is {bad}; give a number above 1"):
        ppo_clip(dual_clip=bad)


def test_ppo_clip_counts_what_dual_clip_bounds() -> None:
    rows = rows_of(response_mask=[[1, 1, 1, 0]], advantages=[[-1.0, 1.0, -1.0, -1.0]], old_log_probs=[[-5.0] * 4])
    forward = forward_of(log_probs=[[0.0, 0.0, -4.5, 0.0]])
    assert ppo_clip(dual_clip=3.0).metrics(forward, rows)["dual_clip_fraction"].tolist() == [[1, 0, 0, 0]]


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    assert terms(cispo(), [-1.5], [2.0], [-1.0]) == (near(1.8196), near(-1.2131))
    assert terms(cispo(0.2, 0.2), [-1.0], [1.0], [-2.0]) == (near(1.2), near(-1.2))  # r = e, weight 1.2


def test_sapo_fades() -> None:
    two = 0.6931472
    assert terms(
        sapo(),
        [0.0, two],
        [1.0, 1.0],
        [0.0, 0.0],
    )[0] == near(-2.0 / 2, -2.9242 / 2)  # each over the two tokens of the row
    assert terms(sapo(), [0.0, two], [1.0, 1.0], [0.0, 0.0])[1] == near(-1.0 / 2, -1.5729 / 2)


def test_dppo_drops_what_left_the_trust_region() -> None:
    tenth, half, hundredth, twentieth = -2.3025851, -0.6931472, -4.6051702, -2.9957323
    assert terms(dppo(), [half, twentieth], [1.0, 1.0], [tenth, hundredth]) == (near(0.0, 14.9787), near(0.0, -5.0))
    assert terms(dppo(), [half], [-1.0], [tenth]) == (near(-5.0 * 0.6931472), near(5.0))  # A pushes it back: kept
    assert terms(dppo(ratio_cap=2.0), [twentieth], [1.0], [hundredth])[1] == near(-2.0)


def test_dppo_measures_kl_of_the_token_or_another() -> None:
    """0.5 log(0.5 / 0.25) + 0.5 log(0.5 / 0.75) = 0.1438: in a region of 0.15, not of 0.14."""
    half, quarter = -0.6931472, -1.3862944
    assert terms(dppo("kl", low=0.15), [quarter], [-1.0], [half])[1] == near(0.5)
    assert terms(dppo("kl", low=0.14), [quarter], [-1.0], [half])[1] == near(0.0)


def test_dppo_knows_two_divergences() -> None:
    with pytest.raises(UsageError, match="dppo: divergence is 'js'; use tv, kl"):
        dppo("js")  # type: ignore[arg-type]


def test_dppo_is_finite_for_a_probability_that_rounding_made_more_than_1() -> None:
    found, slope = terms(dppo("kl"), [1e-7, -0.1], [1.0, 1.0], [-3.0, 1e-7])
    assert slope == near(0.0, -0.9048)
    assert found == near(0.0, 0.0905)


def test_gpg_is_the_policy_gradient() -> None:
    assert terms(gpg(), [-1.5], [2.0], [0.0]) == (near(3.0), near(-2.0))


def test_dro_pulls_to_the_old_policy() -> None:
    assert terms(dro(), [-1.5], [2.0], [-1.0]) == (near(3.0125), near(-2.05))
    with pytest.raises(UsageError, match="dro: beta is 0"):
        dro(0)


def test_gspo_gives_a_row_one_ratio() -> None:
    """Over the two tokens of the row: s = e^0.2."""
    new = [0.3 - 2.0, 0.1 - 2.0]
    assert terms(gspo(), new, [1.0, 1.0], [-2.0, -2.0]) == (near(-0.5002, -0.5002), near(0.0, 0.0))
    assert terms(gspo(), new, [-1.0, -1.0], [-2.0, -2.0]) == (near(0.6107, 0.6107), near(0.6107, 0.6107))


def test_gspo_and_gmpo_of_a_row_far_away_have_no_gradient_beyond_the_bound() -> None:
    for loss in (gspo(), gmpo()):
        found, slope = terms(loss, [0.0, 0.0], [-1.0, -1.0], [-25.0, -25.0])
        assert found == pytest.approx([485165195.4 / 2] * 2)  # e^20 a token, over the two of the row
        assert slope == [0.0, 0.0]


def test_gmpo_clips_a_token_in_the_logarithm() -> None:
    found, slope = terms(gmpo(), [0.6 - 2, -0.2 - 2], [1.0, 1.0], [-2.0, -2.0])
    assert found == near(-1.1052 / 2, -1.1052 / 2)
    assert slope == near(0.0, -0.5526)


def test_topr_tapers_what_went_wrong() -> None:
    assert terms(topr(), [-1.0, -2.0], [-1.0, -1.0], [-0.5, -1.5]) == (near(-0.3679, -0.7358), near(0.3679, 0.3679))
    assert terms(topr(), [-1.0, -2.0], [1.0, 1.0], [-0.5, -1.5]) == (near(1.0, 2.0), near(-1.0, -1.0))
    assert terms(topr(), [-0.5, -1.5], [-1.0, -1.0], [-1.0, -2.0])[1] == near(1.0, 1.0)  # a ratio above 1 is no weight


def test_topr_corrects_for_who_sampled() -> None:
    assert topr().corrects == ("version", "engine")


def test_defaults_of_the_averages_are_the_papers() -> None:
    assert [loss().aggregate for loss in (ppo_clip, cispo, dppo, gpg, dro)] == ["token-mean"] * 5
    assert [loss().aggregate for loss in (gspo, gmpo, sapo)] == ["seq-mean-token-mean"] * 3
    assert topr().aggregate == "seq-mean-token-sum"


@pytest.mark.parametrize("loss", [gspo, gmpo, sapo, topr, cispo, dppo])
def test_options_by_position_are_the_losss_own(loss: Any) -> None:
    first = next(iter(loss(*([] if loss is topr else ["kl"] if loss is dppo else [0.25])).__dict__.items()))
    assert first[0] != "row_weight"
    assert loss(aggregate="token-mean").denominator == "tokens"
