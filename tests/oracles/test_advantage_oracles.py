"""Advantage estimators against every number that other projects' own functions gave on one batch.

AGREE       key → ours, and on which of the trained tokens it must be the peer's number; why not on the others, where there are any
NOT_OURS    key → why we do otherwise (or have no such estimator); each of them has a test of its own below, or no counterpart

Conventions that differ, and why (operators/advantage/__init__.py says them):
- a row without a trained token is in no baseline: peers let its reward into mean and deviation, though nothing of it is trained
- a trajectory alone in its group gets 0: verl and siirl give it its raw reward, on another scale than all others
- what is outside the mask is 0: verl's GAE and ReMax leave numbers there
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from peer_numbers import MASK, PEERS, given, peer

import operators.advantage as shipped
from operators.advantage import (
    gae,
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    maxrl,
    opo,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
    whiten,
)
from operators.fields import TokenRewards
from operators.records import Advantage
from rlflow import Record

GROUPS_WITH_UNTRAINED_ROWS, SINGLETONS = (0, 2, 7), (4, 7)

GROUP = torch.from_numpy(PEERS["inputs/gid"].copy())
SINGLE = torch.from_numpy(np.isin(PEERS["inputs/gid"], SINGLETONS))
COMPARABLE = torch.from_numpy(~np.isin(PEERS["inputs/gid"], (*GROUPS_WITH_UNTRAINED_ROWS, *SINGLETONS)))
OUTCOME, DENSE = given("token_level_rewards"), given("dense_rewards")
VALUES, BASELINES = given("values"), given("reward_baselines")
SCORES = OUTCOME.sum(-1, keepdim=True)
FULL = torch.ones(MASK.shape, dtype=torch.bool)
TRAINED = MASK.any(-1)
COUNTED = MASK | ((OUTCOME != 0) & ~TRAINED[:, None])  # as peers count: the reward of a row without a trained token, too
GAPLESS = torch.tensor([bool(m.any()) and int(m.sum()) == int(m.nonzero()[-1] - m.nonzero()[0]) + 1 for m in MASK])


class Only(Record):
    reward: TokenRewards


def on(rows: torch.Tensor) -> torch.Tensor:
    """The trained tokens of these rows."""
    return MASK & rows[:, None]


class Agreement(NamedTuple):
    ours: Callable[[], torch.Tensor]
    where: torch.Tensor
    elsewhere: str = ""  # why the trained tokens of the other rows differ


IN_GROUPS = "groups with a row that is not trained have another baseline, and a trajectory alone gets 0"
ALONE = "a trajectory alone gets 0, there its raw reward"


def grouped(estimator: Callable[..., Advantage], **options: object) -> Callable[[], torch.Tensor]:
    return lambda: estimator(OUTCOME, MASK, GROUP, **options).advantages


def of_scores(estimator: Callable[..., Advantage], uid: torch.Tensor, **options: object) -> Callable[[], torch.Tensor]:
    """A score a row, one token each."""
    return lambda: estimator(SCORES, torch.ones(SCORES.shape, dtype=torch.bool), uid, **options).advantages[:, 0]


EVERY = torch.ones(24, dtype=torch.bool)
ONE, FOURS = torch.zeros(24, dtype=torch.long), torch.arange(24) // 4
AGREE: dict[str, Agreement] = {
    **{f"{who}/adv/grpo/advantages": Agreement(grouped(grpo), on(COMPARABLE), IN_GROUPS) for who in ("verl", "skyrl", "siirl")},
    **{
        f"{who}/adv/grpo_nostd/advantages": Agreement(grouped(grpo, scale_by_std=False), on(COMPARABLE), IN_GROUPS)
        for who in ("verl", "skyrl", "siirl")
    },
    "verl/adv/grpo_vectorized/advantages": Agreement(grouped(grpo), on(COMPARABLE), IN_GROUPS),
    "siirl/adv/cpgd/advantages": Agreement(grouped(grpo), on(COMPARABLE), IN_GROUPS),  # its advantage is grpo's; its loss is another
    "verl/adv/rloo/advantages": Agreement(grouped(rloo), on(COMPARABLE), IN_GROUPS),
    "verl/adv/rloo_vectorized/advantages": Agreement(grouped(rloo), on(COMPARABLE), IN_GROUPS),
    "skyrl/adv/rloo/advantages": Agreement(grouped(rloo), on(COMPARABLE), IN_GROUPS),
    "verl/adv/opo/advantages": Agreement(grouped(opo), on(~SINGLE), ALONE),  # an untrained row has length 0 in the baseline there, too
    "skyrl/adv/maxrl/advantages": Agreement(grouped(maxrl), on(COMPARABLE), IN_GROUPS),
    "verl/adv/grpo_passk/advantages": Agreement(
        lambda: grpo_passk(OUTCOME, MASK, GROUP).advantages[PEERS["verl/adv/grpo_passk/rows"]],
        on(COMPARABLE)[PEERS["verl/adv/grpo_passk/rows"]],
        IN_GROUPS,
    ),
    **{
        f"verl/adv/reinforce_plus_plus_g{gamma}/{name}": Agreement(
            lambda gamma=gamma, name=name: getattr(reinforce_plus_plus(DENSE, MASK, gamma=gamma), name), MASK  # type: ignore[misc]
        )
        for gamma in (1.0, 0.97)
        for name in ("advantages", "returns")
    },
    **{
        f"verl/adv/gae_g{gamma}_l{lam}_{rewards}/{name}": Agreement(
            lambda gamma=gamma, lam=lam, rewards=rewards, name=name: getattr(  # type: ignore[misc]
                gae(given(rewards), VALUES, MASK, gamma=gamma, lam=lam), name
            ),
            MASK,
        )
        for gamma, lam in ((1.0, 1.0), (0.99, 0.95))
        for rewards in ("token_level_rewards", "dense_rewards")
        for name in ("advantages", "returns")
    },
    **{
        f"siirl/adv/gae_g0.99_l0.95_dense_rewards/{name}": Agreement(
            lambda name=name: getattr(gae(DENSE, VALUES, MASK, gamma=0.99, lam=0.95), name), MASK  # type: ignore[misc]
        )
        for name in ("advantages", "returns")
    },
    **{
        f"verl/adv/remax/{name}": Agreement(lambda name=name: getattr(remax(DENSE, BASELINES, MASK), name), MASK)  # type: ignore[misc]
        for name in ("advantages", "returns")
    },
    "openrlhf/adv/cumulative_returns_g1": Agreement(lambda: reinforce(DENSE, MASK).returns, MASK),
    "verl/masked_whiten": Agreement(lambda: whiten(given("advantages"), MASK), MASK),
    "areal/norm_scores/group_mean_group_std": Agreement(of_scores(grpo, FOURS, epsilon=1e-5), EVERY),
    "areal/norm_scores/group_loo_nostd": Agreement(of_scores(rloo, FOURS), EVERY),
    "areal/norm_scores/group1": Agreement(of_scores(grpo, torch.arange(24)), EVERY),
    "areal/norm_scores/batch": Agreement(of_scores(grpo, ONE, epsilon=1e-5), EVERY),
    "areal/norm_adv/batch_masked": Agreement(lambda: whiten(given("advantages"), MASK), MASK),
}
NO_SUCH_INPUT = "not shipped: it needs Σπ² of every position's distribution, which no engine here returns"
NOT_OURS: dict[str, str] = {
    "verl/adv/gpg/advantages": "α counts rows that have a trained token; there rows without one count as well",
    "verl/adv/reinforce_plus_plus_baseline/advantages": "whitened without trajectories that are alone, which there have their raw reward",
    "verl/adv/gdpo/advantages": "whitened without trajectories that are alone, which there have their raw reward",
    "skyrl/adv/reinforce_plus_plus_g0.97/advantages": "a return carries through a tool's tokens; there it begins anew after each",
    "skyrl/adv/gae_g0.99_l0.95_dense_rewards/advantages": "t + 1 is the next trained token; there the next position, whatever it holds",
    "skyrl/adv/gae_g0.99_l0.95_dense_rewards/returns": "t + 1 is the next trained token; there the next position, whatever it holds",
    "openrlhf/adv/gae_g0.99_l0.95_dense_rewards/advantages_unwhitened": "t + 1 is the next trained token; there it is one whose value is 0",
    "openrlhf/adv/gae_g0.99_l0.95_dense_rewards/returns": "t + 1 is the next trained token; there it is one whose value is 0",
    "verl/adv/grpo_passk/rows": "no result: which rows verl was given, as it raises for a trajectory alone",
    "verl/adv/optimal_token_baseline/advantages": NO_SUCH_INPUT,
    "verl/adv/tir_optimal_token_baseline/advantages": NO_SUCH_INPUT,
}


def close(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-5, atol=1e-5)


def unlike(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine - theirs).abs().max())


def test_every_number_of_every_peer_has_its_place() -> None:
    kinds = ("adv", "masked_whiten", "norm_scores", "norm_adv")
    assert {key for key in PEERS if key.split("/")[1] in kinds} == AGREE.keys() | NOT_OURS.keys()


@pytest.mark.parametrize("key", AGREE)
def test_agrees(key: str) -> None:
    ours, where, _ = AGREE[key]
    assert int(where.sum()) > 20
    close(ours()[where], peer(key)[where])


@pytest.mark.parametrize("key", [key for key, case in AGREE.items() if case.elsewhere])
def test_differs_where_it_is_said_to(key: str) -> None:
    ours, where, _ = AGREE[key]
    elsewhere = (MASK[PEERS["verl/adv/grpo_passk/rows"]] if "passk" in key else MASK) & ~where
    assert unlike(ours()[elsewhere], peer(key)[elsewhere]) > 1e-3


# --- the conventions themselves -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "estimator"),
    [("verl/adv/grpo/advantages", grpo), ("verl/adv/rloo/advantages", rloo), ("skyrl/adv/maxrl/advantages", maxrl)],
)
def test_untrained_rows_counted_in_give_the_number_of_the_peer(key: str, estimator: Callable[..., Advantage]) -> None:
    """With a token of those rows trained, all groups agree: nothing else is different."""
    close(estimator(OUTCOME, COUNTED, GROUP).advantages[on(~SINGLE)], peer(key)[on(~SINGLE)])


@pytest.mark.parametrize("key", [f"{name}/advantages" for name in ("verl/adv/grpo", "verl/adv/rloo", "verl/adv/opo", "siirl/adv/cpgd")])
def test_G1_alone_peers_give_the_raw_reward_and_we_zero(key: str) -> None:
    alone = SINGLE & TRAINED
    assert peer(key)[on(alone)].unique().tolist() == pytest.approx([-0.721])
    for estimator in (grpo, rloo, opo, gpg, grpo_passk, maxrl, reinforce_plus_plus_baseline):
        assert estimator(OUTCOME, MASK, GROUP).advantages[on(alone)].abs().max() == 0


@pytest.mark.parametrize("key", ["verl/adv/rloo_vectorized/advantages", "skyrl/adv/rloo/advantages"])
def test_G1_alone_other_peers_give_zero_too(key: str) -> None:
    assert peer(key)[on(SINGLE)].abs().max() == 0


@pytest.mark.parametrize("key", [key for key in AGREE if ("gae" in key and "advantages" in key) or "remax" in key])
def test_peers_leave_numbers_outside_the_mask_and_we_write_zero(key: str) -> None:
    assert peer(key)[~MASK].abs().max() > 0.1
    assert AGREE[key].ours()[~MASK].abs().max() == 0


def test_gpg_counts_trained_rows() -> None:
    """24 rows there, 22 with a score other than 0; three are not trained: 21 and 19. All else agrees."""
    mine = gpg(OUTCOME, MASK, GROUP).advantages[on(COMPARABLE)]
    theirs = peer("verl/adv/gpg/advantages")[on(COMPARABLE)]
    assert unlike(mine, theirs) > 1e-3
    close(mine / (21 / 19), theirs / (24 / 22))
    close(gpg(OUTCOME, COUNTED, GROUP).advantages[on(~SINGLE)], peer("verl/adv/gpg/advantages")[on(~SINGLE)])


def affine(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """`mine` moved and scaled to meet `theirs`: what whitening by other statistics does."""
    columns = torch.stack([mine, torch.ones_like(mine)], -1).double()
    return columns @ torch.linalg.lstsq(columns, theirs.double().unsqueeze(-1)).solution[:, 0]


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("verl/adv/reinforce_plus_plus_baseline/advantages", lambda: reinforce_plus_plus_baseline(OUTCOME, MASK, GROUP)),
        ("verl/adv/gdpo/advantages", lambda: gdpo(Only(reward=OUTCOME), MASK, GROUP)),
    ],
)
def test_whitened_group_scores_differ_by_the_statistics_alone(key: str, ours: Callable[[], Advantage]) -> None:
    mine, theirs = ours().advantages[on(COMPARABLE)], peer(key)[on(COMPARABLE)]
    assert unlike(mine, theirs) > 1e-3
    close(affine(mine, theirs), theirs)


def test_returns_that_begin_anew_differ_only_in_rows_with_a_gap() -> None:
    key = "skyrl/adv/reinforce_plus_plus_g0.97/advantages"
    mine, theirs = reinforce_plus_plus(DENSE, MASK, gamma=0.97).advantages, peer(key)
    close(affine(mine[on(GAPLESS)], theirs[on(GAPLESS)]), theirs[on(GAPLESS)])
    assert unlike(mine[on(~GAPLESS)], theirs[on(~GAPLESS)]) > 0.1


def test_gae_over_positions_is_gae_with_every_position_a_step() -> None:
    theirs = peer("skyrl/adv/gae_g0.99_l0.95_dense_rewards/returns")
    close(gae(DENSE, VALUES, FULL, gamma=0.99, lam=0.95).returns, theirs)
    mine = gae(DENSE, VALUES, MASK, gamma=0.99, lam=0.95)
    assert unlike(mine.returns[MASK], theirs[MASK]) > 0.1
    assert unlike(mine.advantages[MASK], peer("skyrl/adv/gae_g0.99_l0.95_dense_rewards/advantages")[MASK]) > 0.1


def test_gae_over_positions_of_value_zero_is_gae_with_every_position_a_step() -> None:
    mine = gae(DENSE * MASK, VALUES * MASK, FULL, gamma=0.99, lam=0.95, whiten=False)
    close(mine.advantages, peer("openrlhf/adv/gae_g0.99_l0.95_dense_rewards/advantages_unwhitened"))
    close(mine.returns, peer("openrlhf/adv/gae_g0.99_l0.95_dense_rewards/returns"))
    skipping = gae(DENSE, VALUES, MASK, gamma=0.99, lam=0.95, whiten=False)
    assert unlike(skipping.advantages[MASK], peer("openrlhf/adv/gae_g0.99_l0.95_dense_rewards/advantages_unwhitened")[MASK]) > 0.1


def test_what_is_not_shipped_is_not_there() -> None:
    assert not [name for name in shipped.__all__ if "optimal_token_baseline" in name]
