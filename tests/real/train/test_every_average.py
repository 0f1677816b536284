"""P17 of every shipped loss x aggregation x weight of rows."""

from __future__ import annotations

from typing import Any

import pytest

import operators.loss as shipped
from rlflow.testing import assert_split_invariant

LOSSES: dict[str, dict[str, Any]] = {
    "ppo_clip": {"dual_clip": 3.0},
    "cispo": {},
    "sapo": {},
    "dppo": {},
    "gpg": {},
    "dro": {},
    "gspo": {"clip_low": 0.2, "clip_high": 0.2},
    "gmpo": {},
    "topr": {},
    "clip_cov": {"cov_ratio": 0.1, "cov_low": -5.0},
    "kl_cov": {"cov_ratio": 0.1},
    "kl_penalty": {"beta": 0.1},
    "opd": {},
    "entropy_bonus": {"coef": 0.1},
    "value_clip": {},
}


def test_every_loss_that_promises_it_is_here() -> None:
    assert set(shipped.__all__) - {"load_balancing", "router_z_loss"} == set(LOSSES)  # those: tests/unit/train/test_experts.py


@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("name", LOSSES)
def test_P17_no_cut_changes_a_loss_with_any_average(name: str, aggregate: str) -> None:
    assert_split_invariant(getattr(shipped, name)(**LOSSES[name], aggregate=aggregate, constant=9.0))


@pytest.mark.parametrize("row_weight", ["trajectory", "group"])
@pytest.mark.parametrize("name", LOSSES)
def test_P17_no_cut_changes_a_loss_that_weighs_rows(name: str, row_weight: str) -> None:
    assert_split_invariant(getattr(shipped, name)(**LOSSES[name], aggregate="seq-mean-token-mean", row_weight=row_weight))
