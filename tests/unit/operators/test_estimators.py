"""What each estimator computes, by hand; the rules that hold for all are in test_advantage_rules.py."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.advantage import (
    estimate,
    gae,
    gpg,
    grpo,
    grpo_passk,
    maxrl,
    opo,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    whiten,
)
from operators.records import Advantage
from rlflow.errors import DataError

ONE_GROUP = torch.zeros(8, dtype=torch.long)


def rows_of(*rows: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards, and a mask that trains each row as long as it is."""
    width = max(map(len, rows))
    rewards = torch.tensor([row + [0.0] * (width - len(row)) for row in rows])
    return rewards, torch.arange(width) < torch.tensor([[len(row)] for row in rows])


def firsts(result: Advantage) -> list[float]:
    return result.advantages[:, 0].tolist()


# --- group-relative -------------------------------------------------------------------------------------------------------------------
def test_grpo_leave_one_out_by_hand() -> None:
    rewards, mask = rows_of([1], [0], [0], [1])  # others' means 1/3 and 2/3, σ = 0.57735
    got = grpo(rewards, mask, ONE_GROUP[:4], leave_one_out=True, epsilon=0.0)
    assert firsts(got) == pytest.approx([1.1547005, -1.1547005, -1.1547005, 1.1547005])


def test_opo_by_hand() -> None:
    rewards, mask = rows_of([0, 0, 1], [0], [0, 0, 0, 2])  # lengths 3, 1, 4: baseline (3 + 0 + 8) / 8
    got = opo(rewards, mask, ONE_GROUP[:3])
    assert firsts(got) == [-0.375, -1.375, 0.625]
    assert got.advantages[0].tolist() == [-0.375, -0.375, -0.375, 0.0]


def test_opo_weighs_a_forked_trajectory_by_the_tokens_of_all_its_leaves() -> None:
    rewards, mask = rows_of([0, 0, 1], [0], [0, 0, 2], [2])  # the last two are one trajectory of four tokens
    assert firsts(opo(rewards, mask, ONE_GROUP[:4], traj_uid=torch.tensor([0, 1, 2, 2]))) == [-0.375, -1.375, 0.625, 0.625]


def test_gpg_by_hand() -> None:
    rewards, mask = rows_of([1], [0], [0], [0])  # one of four scores is not 0: α = 4; of uid 9 nothing differs
    uid = torch.tensor([5, 5, 9, 9])
    assert firsts(gpg(rewards, mask, uid)) == [2.0, -2.0, 0.0, 0.0]
    assert firsts(gpg(rewards, mask, uid, counted="comparable")) == [1.0, -1.0, 0.0, 0.0]


def test_gpg_where_every_score_is_zero_is_zero() -> None:
    rewards, mask = rows_of([0], [0])
    assert firsts(gpg(rewards, mask, ONE_GROUP[:2])) == [0.0, 0.0]


def test_gpg_counts_trajectories_not_rows() -> None:
    rewards, mask = rows_of([1], [1], [0])  # two trajectories, one scored: α = 2, μ = 0.5
    assert firsts(gpg(rewards, mask, ONE_GROUP[:3], traj_uid=torch.tensor([0, 0, 1]))) == [1.0, 1.0, -1.0]


def test_grpo_passk_by_hand() -> None:
    rewards, mask = rows_of([3], [1], [2], [7], [7])
    got = grpo_passk(rewards, mask, torch.tensor([0, 0, 0, 1, 1]), epsilon=0.0)
    assert firsts(got) == [1.0, 0.0, 0.0, 0.0, 0.0]  # σ of 3, 1, 2 is 1; a tie for the best is no lead


def test_grpo_passk_without_std_is_the_lead() -> None:
    rewards, mask = rows_of([9], [1], [4])
    assert firsts(grpo_passk(rewards, mask, ONE_GROUP[:3], scale_by_std=False)) == [5.0, 0.0, 0.0]


def test_grpo_passk_tie_for_the_best_over_a_third_is_zero() -> None:
    rewards, mask = rows_of([4], [4], [1])
    assert firsts(grpo_passk(rewards, mask, ONE_GROUP[:3])) == [0.0, 0.0, 0.0]


def test_grpo_passk_leaves_of_the_best_share_its_lead_and_are_not_its_rivals() -> None:
    rewards, mask = rows_of([5], [5], [2])
    got = grpo_passk(rewards, mask, ONE_GROUP[:3], traj_uid=torch.tensor([0, 0, 1]), scale_by_std=False)
    assert firsts(got) == [3.0, 3.0, 0.0]


def test_maxrl_by_hand() -> None:
    rewards, mask = rows_of([1], [0], [0], [0])
    assert firsts(maxrl(rewards, mask, ONE_GROUP[:4], epsilon=0.0)) == [3.0, -1.0, -1.0, -1.0]


def test_maxrl_of_a_mean_of_zero_stays_finite() -> None:
    rewards, mask = rows_of([1], [-1])
    assert firsts(maxrl(rewards, mask, ONE_GROUP[:2], epsilon=0.0)) == [1.0, -1.0]


# --- along a row ----------------------------------------------------------------------------------------------------------------------
def test_reinforce_by_hand() -> None:
    rewards, mask = rows_of([0, 0, 1], [2])
    got = reinforce(rewards, mask, gamma=0.5)
    assert got.advantages.tolist() == [[0.25, 0.5, 1.0], [2.0, 0.0, 0.0]]
    assert got.returns.tolist() == got.advantages.tolist()


def test_reinforce_carries_through_tool_tokens() -> None:
    mask = torch.tensor([[True, False, False, True]])
    assert reinforce(torch.tensor([[1.0, 5.0, 7.0, 4.0]]), mask, gamma=0.5).returns.tolist() == [[3.0, 0.0, 0.0, 4.0]]


def test_reinforce_plus_plus_by_hand() -> None:
    rewards, mask = rows_of([0, 1], [0, 3])
    got = reinforce_plus_plus(rewards, mask)
    assert got.returns.tolist() == [[1.0, 1.0], [3.0, 3.0]]
    assert got.advantages.flatten().tolist() == pytest.approx([-0.8660254, -0.8660254, 0.8660254, 0.8660254])


def test_reinforce_plus_plus_baseline_by_hand() -> None:
    rewards, mask = rows_of([1], [0], [3], [1])  # s - μ = ±0.5, ±1; Σ² = 2.5, variance 2.5 / 3
    got = reinforce_plus_plus_baseline(rewards, mask, torch.tensor([0, 0, 1, 1]))
    assert firsts(got) == pytest.approx([0.5477226, -0.5477226, 1.0954451, -1.0954451])


def test_reinforce_plus_plus_baseline_whitens_over_tokens() -> None:
    rewards, mask = rows_of([0, 0, 1], [0])  # 0.5 thrice and -0.5: mean 0.25, variance (3/16 + 9/16) / 3 = 0.25
    got = reinforce_plus_plus_baseline(rewards, mask, ONE_GROUP[:2])
    assert firsts(got) == pytest.approx([0.5, -1.5])


def test_remax_by_hand() -> None:
    rewards, mask = rows_of([0, 1], [3])
    got = remax(rewards, torch.tensor([0.75, 1.0]), mask)
    assert got.advantages.tolist() == [[0.25, 0.25], [2.0, 0.0]]
    assert got.returns.tolist() == [[1.0, 1.0], [3.0, 0.0]]


def test_remax_refuses_a_baseline_that_is_no_number() -> None:
    rewards, mask = rows_of([0, 1], [3])
    with pytest.raises(DataError, match="reward_baselines of row 1"):
        remax(rewards, torch.tensor([0.75, float("inf")]), mask)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 150), min_size=1, max_size=6), st.sampled_from([0.0, 0.9, 0.99, 1.0]), st.integers(0, 9))
def test_returns_equal_a_backward_loop(lengths: list[int], gamma: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(len(lengths), 200, generator=generator)
    mask = torch.zeros(rewards.shape, dtype=torch.bool)
    for row, n in enumerate(lengths):
        mask[row, torch.randperm(200, generator=generator)[:n]] = True
    got = reinforce(rewards, mask, gamma=gamma).returns
    for row in range(len(lengths)):
        carried, expected = 0.0, []
        for reward in reversed(rewards[row][mask[row]].tolist()):
            carried = reward + gamma * carried
            expected.append(carried)
        assert got[row][mask[row]].tolist() == pytest.approx(expected[::-1], rel=1e-5, abs=1e-5)


def test_large_numbers_of_one_row_do_not_touch_the_digits_of_another() -> None:
    rewards, mask = torch.full((3, 500), 0.1), torch.ones(3, 500, dtype=torch.bool)
    alone = reinforce(rewards[1:2], mask[1:2]).returns[0]
    rewards[0] = 1e18
    rewards[2] = -1e18
    assert torch.equal(reinforce(rewards, mask).returns[1], alone)


def test_rows_of_more_tokens_than_are_worked_on_at_once() -> None:
    rewards = torch.zeros(3, 300_000)
    rewards[:, -1] = torch.tensor([1.0, 2.0, 3.0])
    got = gae(rewards, torch.zeros(rewards.shape), torch.ones(rewards.shape, dtype=torch.bool), whiten=False)
    assert [row.unique().tolist() for row in got.advantages] == [[1.0], [2.0], [3.0]]


# --- whitening ------------------------------------------------------------------------------------------------------------------------
def test_G19_whitening_is_over_the_whole_batch_and_an_empty_row_joins() -> None:
    """Two ranks' rows, [0, 0] and [10, 10], are whitened together; a row without a token is no obstacle."""
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    got = whiten(torch.tensor([[0.0, 0.0], [10.0, 10.0], [float("nan"), 7.0]]), mask)
    assert got[:2].flatten().tolist() == pytest.approx([-0.8660254, -0.8660254, 0.8660254, 0.8660254])
    assert got[2].tolist() == [0.0, 0.0]


def test_whitening_survives_a_large_mean() -> None:
    got = whiten(torch.tensor([[4096.0, 4096.5, 4097.0]]), torch.ones(1, 3, dtype=torch.bool))
    assert got[0].tolist() == pytest.approx([-1.0, 0.0, 1.0], rel=1e-6, abs=1e-6)


# --- estimate -------------------------------------------------------------------------------------------------------------------------
def test_estimate_hands_values_to_what_asks_for_them_and_to_no_other() -> None:
    rewards, mask = rows_of([0, 0, 1])
    has = {"token_level_rewards": rewards, "response_mask": mask, "uid": ONE_GROUP[:1], "values": torch.tensor([[0.5, 0.25, 0.5]])}
    assert estimate(gae, **has).returns.tolist() == [[1.0, 1.0, 1.0]]
    assert estimate(grpo, **has).advantages.tolist() == [[0.0, 0.0, 0.0]]


def test_estimate_hands_baselines_on() -> None:
    rewards, mask = rows_of([0, 1])
    got = estimate(remax, token_level_rewards=rewards, response_mask=mask, uid=ONE_GROUP[:1], reward_baselines=torch.tensor([0.75]))
    assert got.advantages.tolist() == [[0.25, 0.25]]


def test_estimate_without_what_is_needed_says_so() -> None:
    rewards, mask = rows_of([0, 1])
    with pytest.raises(TypeError, match="values"):
        estimate(gae, token_level_rewards=rewards, response_mask=mask, uid=ONE_GROUP[:1], values=None)
