from __future__ import annotations

import math

import pytest
import torch

from operators.fields import Policy
from operators.mismatch_metrics import mismatch_metrics
from rlflow import Current
from rlflow.errors import DataError
from rlflow.measure import collected

NAN = float("nan")


def measured(
    log_ratios: list[list[float]], mask: list[list[int]] | None = None, versions: list[list[int]] | None = None
) -> dict[str, float]:
    """What is noted at version 5 for these log-ratios; versions: of what sampled each token, 5 where nothing is said."""
    old = torch.tensor(log_ratios)
    shown = torch.ones(old.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    of = torch.full(old.shape, 5, dtype=torch.int32) if versions is None else torch.tensor(versions, dtype=torch.int32)
    collected()
    mismatch_metrics(Current[Policy]("policy", "current", 5), old, torch.zeros(old.shape), shown, of)
    return collected()


def test_two_tokens_by_hand() -> None:
    """r = e^0.1, e^-0.1: Σ r = 2.010008, Σ r² = 2.040134, so the share is 4.040134 / 4.080267."""
    got = measured([[0.1, -0.1, NAN]], [[1, 1, 0]])
    assert got["kl_rollout_train_k1"] == pytest.approx(0.0, abs=1e-8)
    assert got["kl_rollout_train_k3"] == pytest.approx((0.10517092 - 0.1 - 0.09516258 + 0.1) / 2, rel=1e-5)
    assert got["kl_train_rollout_k1"] == pytest.approx((1.10517092 * 0.1 - 0.90483742 * 0.1) / 2, rel=1e-5)
    assert got["kl_train_rollout_k3"] == pytest.approx((0.110517092 - 0.10517092 - 0.090483742 + 0.09516258) / 2, rel=1e-4)
    assert got["ess_tokens"] == pytest.approx(0.990164, abs=1e-5)
    assert (got["ratio_min"], got["ratio_max"]) == pytest.approx((0.90483742, 1.10517092))
    assert (got["ess_rows"], got["ppl_ratio"]) == pytest.approx((1.0, 1.0))


def test_policies_that_agree_have_every_sample_effective_and_no_divergence() -> None:
    got = measured([[0.0, 0.0], [0.0, 0.0]])
    assert {name: value for name, value in got.items() if "kl" in name} == dict.fromkeys([n for n in got if "kl" in n], 0.0)
    assert {got[name] for name in ("ess_tokens", "ess_rows", "ratio_min", "ratio_p01", "ratio_p99", "ratio_max", "ppl_ratio")} == {1.0}


def test_effective_rows_by_the_product_over_each() -> None:
    """Two rows of weight e^(0.5 + 0.5) = e and 1: (e + 1)² / (2 (e² + 1))."""
    got = measured([[0.5, 0.5], [0.0, 9.0]], [[1, 1], [1, 0]])
    assert got["ess_rows"] == pytest.approx((math.e + 1) ** 2 / (2 * (math.e**2 + 1)), rel=1e-6)


def test_a_row_of_a_thousand_nats_overflows_nothing() -> None:
    assert measured([[15.0] * 100, [0.0] * 100])["ess_rows"] == pytest.approx(0.5)  # one row has all the weight


def test_perplexities_are_compared_row_by_row() -> None:
    """Training finds row 0 less likely by 0.2 nats a token, row 1 more likely by 0.4."""
    got = measured([[-0.1, -0.3], [0.4, 0.0]], [[1, 1], [1, 0]])
    assert got["ppl_ratio"] == pytest.approx((math.exp(0.2) + math.exp(-0.4)) / 2, rel=1e-6)


def test_percentiles_are_values_that_are_there() -> None:
    """200 tokens, log r = 0 .. 1.99 by 0.01: 1% is the second smallest, 99% the 198th."""
    got = measured([[i / 100 for i in range(200)]])
    assert (got["ratio_min"], got["ratio_p01"], got["ratio_p99"], got["ratio_max"]) == pytest.approx(
        (1.0, math.exp(0.01), math.exp(1.97), math.exp(1.99)), rel=1e-6
    )


def test_divergence_by_quarter_of_a_rows_own_tokens() -> None:
    """Row 0 has tokens in all quarters (its tool's does not count), row 1 has one token, the first."""
    k3 = {x: math.expm1(x) - x for x in (0.1, 0.2, 0.3, 0.4, 0.5)}
    got = measured([[0.1, 9.0, 0.2, 0.3, 0.4], [0.5, 0.0, 0.0, 0.0, 0.0]], [[1, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
    assert [got[f"kl_position_{i}"] for i in (1, 2, 3, 4)] == pytest.approx([(k3[0.1] + k3[0.5]) / 2, k3[0.2], k3[0.3], k3[0.4]], rel=1e-5)


def test_divergence_by_version_gap() -> None:
    k3 = {x: math.expm1(x) - x for x in (0.1, 0.3)}
    got = measured([[0.1, 0.3, 0.0, 0.0]], [[1, 1, 1, 0]], [[5, 4, -9, -1]])
    assert {n: v for n, v in got.items() if "gap" in n} == pytest.approx(
        {"kl_gap_0": k3[0.1], "kl_gap_1": k3[0.3], "kl_gap_8": 0.0}, rel=1e-5
    )


def test_nothing_is_noted_where_nothing_is_trained() -> None:
    assert measured([[0.1]], [[0]]) == {}


def test_a_log_prob_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="row 0"):
        measured([[NAN]])
