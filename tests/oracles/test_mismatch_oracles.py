"""Importance weights and rejection masks against the numbers of verl 0.9.1 and openrlhf 0.11.2: every key of theirs is in a table below.

One convention differs, and only in how a bound is written: verl's k1 band is on the inverse, π_rollout / π_train. Its 0.9 .. 1.1 is our
1/1.1 .. 1/0.9, and its 0.5 .. 2 our own, as it is its own inverse. k2 and k3 are no ratios, and the same in both.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peer_numbers import MASK, PEERS, given, peer

from operators.mismatch import importance_weighted, reject_rows, reject_tokens, self_normalized_importance, truncated_importance

OLD, ROLLOUT, ONES = given("old_log_prob"), given("rollout_log_prob"), torch.ones(MASK.shape)

TRUNCATED: dict[str, Any] = {"high": 2.0}
BANDED: dict[str, Any] = {"low": 0.5, "high": 2.0, "outside": "zero"}
WEIGHTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    f"verl/rollout_is/{level}/{name}/bn{int(normalized)}": (self_normalized_importance if normalized else importance_weighted, level, band)
    for level in ("token", "sequence")
    for name, band in (("2.0", TRUNCATED), ("0.5_2.0", BANDED))
    for normalized in (False, True)
}

INVERSE_BAND: dict[str, Any] = {"low": 1 / 1.1, "high": 1 / 0.9}  # verl was given 0.9_1.1
REJECTED: dict[str, tuple[Any, dict[str, Any]]] = {
    "verl/rollout_rs/token_k1": (reject_tokens, {"low": 0.5, "high": 2.0}),
    "verl/rollout_rs/token_k2": (reject_tokens, {"by": "k2", "high": 0.1}),
    "verl/rollout_rs/token_k3": (reject_tokens, {"by": "k3", "high": 0.1}),
    "verl/rollout_rs/seq_sum_k1": (reject_rows, {"over": "sum", "low": 0.5, "high": 2.0}),
    "verl/rollout_rs/seq_sum_k2": (reject_rows, {"over": "sum", "by": "k2", "high": 0.5}),
    "verl/rollout_rs/seq_sum_k3": (reject_rows, {"over": "sum", "by": "k3", "high": 0.5}),
    "verl/rollout_rs/seq_mean_k1": (reject_rows, {"over": "mean", **INVERSE_BAND}),
    "verl/rollout_rs/seq_mean_k2": (reject_rows, {"over": "mean", "by": "k2", "high": 0.02}),
    "verl/rollout_rs/seq_mean_k3": (reject_rows, {"over": "mean", "by": "k3", "high": 0.02}),
    "verl/rollout_rs/seq_max_k2": (reject_rows, {"over": "max", "by": "k2", "high": 0.3}),
    "verl/rollout_rs/seq_max_k3": (reject_rows, {"over": "max", "by": "k3", "high": 0.3}),
}
CHAINED = "verl/rollout_rs/token_k1,seq_mean_k3"  # one mask after the other

IN_THE_LOSS = {  # openrlhf's are inside its PPO loss
    "openrlhf/policy/tis_clip": importance_weighted(ONES, OLD, ROLLOUT, MASK, high=2.0),
    "openrlhf/policy/icepop": importance_weighted(ONES, OLD, ROLLOUT, MASK, low=0.5, high=5.0, outside="zero"),
    "openrlhf/policy/seq_mask": importance_weighted(ONES, OLD, ROLLOUT, MASK, high=1e9)
    * reject_rows(MASK, OLD, ROLLOUT, low=0.9, high=1.1),
}


@pytest.mark.parametrize("key", WEIGHTS)
def test_weights_agree(key: str) -> None:
    operator, level, band = WEIGHTS[key]
    torch.testing.assert_close(operator(ONES, OLD, ROLLOUT, MASK, level=level, **band), peer(key), rtol=1e-6, atol=0)


def test_truncated_importance_agrees_where_it_truncates() -> None:
    mine = truncated_importance(ONES, OLD, ROLLOUT, MASK)
    torch.testing.assert_close(mine, peer("verl/rollout_is/token/2.0/bn0"), rtol=1e-6, atol=0)
    assert int((mine == 2.0).sum()) >= 5


@pytest.mark.parametrize("key", REJECTED)
def test_rejection_masks_are_equal(key: str) -> None:
    operator, options = REJECTED[key]
    assert torch.equal(operator(MASK, OLD, ROLLOUT, **options), peer(key).bool())


def test_one_rejection_after_another_is_equal() -> None:
    tokens = reject_tokens(MASK, OLD, ROLLOUT, low=0.5, high=2.0)
    assert torch.equal(reject_rows(tokens, OLD, ROLLOUT, by="k3", high=0.02), peer(CHAINED).bool())


@pytest.mark.parametrize("name", IN_THE_LOSS)
def test_weights_on_the_terms_of_a_loss_agree(name: str) -> None:
    """Its loss is the mean over all trained tokens of weight times clipped term: a zero weight still counts in the denominator."""
    log_probs = given("log_prob").requires_grad_()
    ratio = (log_probs - OLD).clamp(-20, 20).exp()
    terms = -torch.minimum(ratio * given("advantages"), ratio.clamp(0.8, 1.2) * given("advantages"))
    loss = (terms * IN_THE_LOSS[name]).where(MASK, 0.0).sum() / MASK.sum()
    loss.backward()
    torch.testing.assert_close(loss.detach(), peer(f"{name}/loss"), rtol=1e-6, atol=0)
    torch.testing.assert_close(log_probs.grad, peer(f"{name}/grad_log_prob"), rtol=1e-5, atol=1e-8)


def test_verls_k1_band_is_the_inverse_of_ours() -> None:
    """A row that training finds e^0.1 = 1.105 times as likely is outside 0.9 .. 1.1, and inside verl's: its inverse is 0.905."""
    mask, old, rollout = torch.ones(1, 1, dtype=torch.bool), torch.tensor([[0.1]]), torch.zeros(1, 1)
    assert reject_rows(mask, old, rollout, low=0.9, high=1.1).tolist() == [[False]]
    assert reject_rows(mask, old, rollout, **INVERSE_BAND).tolist() == [[True]]


def test_no_key_of_these_families_is_forgotten() -> None:
    families = ("verl/rollout_is/", "verl/rollout_rs/", *(f"{name}/" for name in IN_THE_LOSS))
    there = {key for key in PEERS.files if key.startswith(families)}
    compared = {*WEIGHTS, *REJECTED, CHAINED, *(f"{name}/{what}" for name in IN_THE_LOSS for what in ("loss", "grad_log_prob"))}
    assert compared == there
    assert len(there) == 26
