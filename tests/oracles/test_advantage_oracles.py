"""Advantage estimators against the numbers of other projects, where those agree with what we chose; our choices are tested in unit/."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peer_numbers import MASK, PEERS, given, peer

from operators.advantage import gae, grpo, rloo

GROUPS_WITH_UNTRAINED_ROWS, SINGLETONS = (0, 2, 7), (4, 7)

COMPARABLE = torch.from_numpy(~np.isin(PEERS["inputs/gid"], (*GROUPS_WITH_UNTRAINED_ROWS, *SINGLETONS)))


def agree(mine: torch.Tensor, key: str, where: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(mine[where], peer(key)[where], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("project", ["verl", "skyrl"])
@pytest.mark.parametrize(("name", "scale_by_std"), [("grpo", True), ("grpo_nostd", False)])
def test_grpo_agrees(project: str, name: str, scale_by_std: bool) -> None:
    mine = grpo(given("token_level_rewards"), MASK, given("gid"), scale_by_std=scale_by_std).advantages
    assert int(COMPARABLE.sum()) == 13
    agree(mine, f"{project}/adv/{name}/advantages", COMPARABLE)


@pytest.mark.parametrize("key", ["verl/adv/rloo_vectorized/advantages", "skyrl/adv/rloo/advantages"])
def test_rloo_agrees(key: str) -> None:
    agree(rloo(given("token_level_rewards"), MASK, given("gid")).advantages, key, COMPARABLE)


@pytest.mark.parametrize("rewards", ["token_level_rewards", "dense_rewards"])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95)])
def test_gae_agrees_on_valid_tokens(rewards: str, gamma: float, lam: float) -> None:
    mine = gae(given(rewards), given("values"), MASK, gamma=gamma, lam=lam)
    agree(mine.advantages, f"verl/adv/gae_g{gamma}_l{lam}_{rewards}/advantages", MASK)
    agree(mine.returns, f"verl/adv/gae_g{gamma}_l{lam}_{rewards}/returns", MASK)


def test_gae_agrees_with_a_second_peer() -> None:
    mine = gae(given("dense_rewards"), given("values"), MASK, gamma=0.99, lam=0.95)
    agree(mine.advantages, "siirl/adv/gae_g0.99_l0.95_dense_rewards/advantages", MASK)
