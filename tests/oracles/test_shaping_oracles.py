"""KL in the reward against verl's function of it, and its estimators against those of five projects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peer_numbers import MASK, PEERS, given, peer

from operators.shaping import kl_in_reward

MATRICES = sorted(key for key in PEERS.files if "/kl/" in key and key.endswith("/mat"))


def test_rewards_agree_on_trained_tokens() -> None:
    """verl masks nothing here: where a tool spoke it pays for its divergence too. We leave 0 there, and its sums are over the whole row."""
    mine = kl_in_reward(given("dense_rewards"), given("old_log_prob"), given("ref_log_prob"), MASK, beta=0.05)
    theirs = peer("verl/compute_rewards/0.05")
    torch.testing.assert_close(mine[MASK], theirs[MASK], rtol=1e-6, atol=1e-7)
    assert float(mine[~MASK].abs().max()) == 0.0
    assert float(theirs[~MASK].abs().max()) > 1.0


@pytest.mark.parametrize("key", MATRICES)
def test_estimators_agree(key: str) -> None:
    """verl, siirl and skyrl bound k3 at 10, areal and openrlhf all of theirs: two tokens are beyond it, and not compared."""
    name: Any = {"low_var_kl": "k3", "k1+": "k1", "k3+": "k3"}.get(key.split("/")[-2], key.split("/")[-2])
    mine = -kl_in_reward(torch.zeros(MASK.shape), given("log_prob"), given("ref_log_prob"), MASK, beta=1.0, estimator=name)
    unbounded = name != "k3" and key.split("/")[0] in ("verl", "siirl", "skyrl")
    compared = MASK if unbounded else MASK & (mine.abs() < 10)
    assert int((MASK & ~compared).sum()) in (0, 2)
    torch.testing.assert_close(mine[compared], peer(key)[compared], rtol=1e-5, atol=1e-6)


def test_no_key_of_these_is_forgotten() -> None:
    assert [key for key in PEERS.files if "compute_rewards" in key] == ["verl/compute_rewards/0.05"]
    assert len(MATRICES) == 22
