from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.advantage import estimate, gae, grpo, rloo
from rlflow.errors import DataError

NAN = float("nan")


def outcome(scores: list[float], width: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards with the score at the last of `width` trained tokens."""
    rewards = torch.zeros(len(scores), width)
    rewards[:, -1] = torch.tensor(scores)
    return rewards, torch.ones(len(scores), width, dtype=torch.bool)


def rows(values: torch.Tensor) -> list[float]:
    """The advantage of each row: all its tokens carry the same."""
    assert torch.equal(values, values[:, :1].expand(values.shape))
    return values[:, 0].tolist()


# --- grpo, rloo -----------------------------------------------------------------------------------------------------------------------
def test_grpo_of_one_group_by_hand() -> None:
    rewards, mask = outcome([1, 0, 0, 1])
    got = rows(grpo(rewards, mask, torch.zeros(4, dtype=torch.long)).advantages)
    assert got == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=2e-6)


def test_grpo_without_std_is_the_centred_score() -> None:
    rewards, mask = outcome([1, 0, 0, 2])
    assert rows(grpo(rewards, mask, torch.zeros(4, dtype=torch.long), scale_by_std=False).advantages) == [0.25, -0.75, -0.75, 1.25]


def test_rloo_of_one_group_by_hand() -> None:
    rewards, mask = outcome([1, 0, 0])
    assert rows(rloo(rewards, mask, torch.zeros(3, dtype=torch.long)).advantages) == [1.0, -0.5, -0.5]


@pytest.mark.parametrize("estimator", [grpo, rloo])
def test_G1_singleton_gets_zero_not_its_raw_score_and_not_nan(estimator: Any) -> None:
    rewards, mask = outcome([0.7, 1, 0])
    assert estimator(rewards, mask, torch.tensor([5, 6, 6])).advantages[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("estimator", [grpo, rloo, partial(grpo, scale_by_std=False)])
@pytest.mark.parametrize(("score", "copies"), [(0.9, 3), (0.1, 7), (1 / 3, 11), (-1e4, 5)])
def test_G2_identical_rewards_give_exactly_zero(estimator: Any, score: float, copies: int) -> None:
    rewards, mask = outcome([score] * copies)
    assert estimator(rewards, mask, torch.zeros(copies, dtype=torch.long)).advantages.abs().max() == 0


@pytest.mark.parametrize("estimator", [grpo, rloo, partial(grpo, scale_by_std=False)])
def test_G2_identical_rewards_of_forked_trajectories_give_exactly_zero(estimator: Any) -> None:
    rewards, mask = outcome([0.1] * 9)  # seven leaves weigh 1/7 each, and 7 · (0.1 / 7) is not 0.1
    got = estimator(rewards, mask, torch.zeros(9, dtype=torch.long), traj_uid=torch.tensor([0] * 7 + [1, 2]))
    assert got.advantages.abs().max() == 0


def test_small_differences_on_a_large_reward_survive() -> None:
    rewards, mask = outcome([10_000.0, 10_000.001, 10_000.002])
    steps = rewards[:, -1].double()
    expected = (steps - steps.mean()) / steps.std()
    assert rows(grpo(rewards, mask, torch.zeros(3, dtype=torch.long), epsilon=0.0).advantages) == pytest.approx(expected.tolist(), rel=1e-6)


def test_G4_every_group_is_normalised() -> None:
    rewards, mask = outcome([1, 0, 0, 0, 0, 0, 0, 3])
    got = rows(grpo(rewards, mask, torch.tensor([0] * 4 + [1] * 4), epsilon=0.0).advantages)
    assert got == pytest.approx([1.5, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5, 1.5])


def test_groups_need_not_be_consecutive_nor_uids_small() -> None:
    rewards, mask = outcome([1, 5, 0, 7])
    assert rows(rloo(rewards, mask, torch.tensor([10**15, -3, 10**15, -3])).advantages) == [1.0, -2.0, -1.0, 2.0]


def test_G8_padding_rows_of_their_own_uid_change_nothing() -> None:
    rewards, mask = outcome([1, 0])
    padded_rewards, padded_mask = torch.cat([rewards, torch.zeros(2, 2)]), torch.cat([mask, torch.zeros(2, 2, dtype=torch.bool)])
    got = rows(grpo(padded_rewards, padded_mask, torch.tensor([4, 4, -1, -2]), epsilon=0.0).advantages)
    assert got == pytest.approx([0.70710678, -0.70710678, 0.0, 0.0])


def test_row_without_a_trained_token_is_in_no_baseline() -> None:
    rewards, mask = outcome([1, 0, 8])
    mask[2] = False
    assert rows(rloo(rewards, mask, torch.zeros(3, dtype=torch.long)).advantages) == [1.0, -1.0, 0.0]


def test_group_left_with_one_scored_row_gets_zero() -> None:
    rewards, mask = outcome([1, 0])
    mask[1] = False
    assert grpo(rewards, mask, torch.zeros(2, dtype=torch.long)).advantages.abs().sum() == 0


@pytest.mark.parametrize("estimator", [grpo, rloo])
def test_L17_nan_outside_the_mask_is_harmless_and_zero_is_written_there(estimator: Any) -> None:
    rewards = torch.tensor([[1.0, NAN], [0.0, NAN]])
    mask = torch.tensor([[True, False], [True, False]])
    got = estimator(rewards, mask, torch.zeros(2, dtype=torch.long))
    assert got.advantages.isfinite().all()
    assert got.advantages[:, 1].tolist() == [0.0, 0.0]
    assert got.advantages[0, 0] > 0


def test_nan_inside_the_mask_is_refused_and_named() -> None:
    rewards, mask = outcome([1, NAN, 0])
    with pytest.raises(DataError, match=r"token_level_rewards of row 1 \(uid 9\)"):
        grpo(rewards, mask, torch.tensor([9, 9, 9]))
    with pytest.raises(DataError, match="row 1"):
        gae(rewards, torch.zeros(3, 2), mask)


def test_G24_advantages_own_their_memory() -> None:
    rewards, mask = outcome([1, 0], width=4)
    got = rloo(rewards, mask, torch.zeros(2, dtype=torch.long))
    got.advantages[0, 1] = 99.0
    assert got.advantages[0].tolist() == [1.0, 99.0, 1.0, 1.0]
    assert got.returns[0].tolist() == [1.0, 1.0, 1.0, 1.0]


def test_G25_inputs_are_not_written() -> None:
    rewards, mask = outcome([1, 0, 2])
    before = rewards.clone()
    grpo(rewards, mask, torch.zeros(3, dtype=torch.long))
    gae(rewards, rewards, mask)
    assert torch.equal(rewards, before)


def test_results_are_float32() -> None:
    rewards, mask = outcome([1, 0])
    for got in (grpo(rewards, mask, torch.zeros(2, dtype=torch.long)), gae(rewards, rewards, mask)):
        assert (got.advantages.dtype, got.returns.dtype) == (torch.float32, torch.float32)


# --- leaves of one trajectory ---------------------------------------------------------------------------------------------------------
def test_G11_baseline_is_over_trajectories_not_rows() -> None:
    rewards, mask = outcome([1, 0, 0, 0])  # trajectory 0 has one leaf, trajectory 1 three
    got = rows(rloo(rewards, mask, torch.zeros(4, dtype=torch.long), traj_uid=torch.tensor([0, 1, 1, 1])).advantages)
    assert got == [1.0, -1.0, -1.0, -1.0]  # by rows it were 1, -1/3, -1/3, -1/3


def test_G15_two_leaves_of_each_trajectory_give_what_one_leaf_gives() -> None:
    one, mask_one = outcome([1, 0, 3])
    two, mask_two = outcome([1, 1, 0, 0, 3, 3])
    uid, traj_uid = torch.zeros(6, dtype=torch.long), torch.tensor([0, 0, 1, 1, 2, 2])
    for estimator in (grpo, rloo):
        single = rows(estimator(one, mask_one, uid[:3]).advantages)
        forked = rows(estimator(two, mask_two, uid, traj_uid=traj_uid).advantages)
        assert forked[::2] == forked[1::2]
        assert forked[::2] == pytest.approx(single, rel=1e-6)


def test_traj_uid_is_counted_within_its_uid() -> None:
    rewards, mask = outcome([1, 0, 5, 3])
    uid, traj_uid = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert rows(rloo(rewards, mask, uid, traj_uid=traj_uid).advantages) == [1.0, -1.0, 2.0, -2.0]


def test_forked_trajectory_alone_in_its_group_gets_zero() -> None:
    rewards, mask = outcome([1, 0])
    uid = torch.zeros(2, dtype=torch.long)
    assert grpo(rewards, mask, uid, traj_uid=torch.tensor([7, 7])).advantages.abs().sum() == 0


def loop_grpo(scores: list[float], scored: list[bool], uid: list[int], traj: list[int]) -> list[float]:
    """An independent computation, row by row, from the definition."""
    out = []
    for i in range(len(scores)):
        members = [j for j in range(len(scores)) if uid[j] == uid[i] and scored[j]]
        trajectories = sorted({traj[j] for j in members})
        if not scored[i] or len(trajectories) < 2 or len({scores[j] for j in members}) == 1:
            out.append(0.0)
            continue
        weight = {j: 1 / sum(traj[k] == traj[j] for k in members) for j in members}
        mean = sum(weight[j] * scores[j] for j in members) / len(trajectories)
        variance = sum(weight[j] * (scores[j] - mean) ** 2 for j in members) / (len(trajectories) - 1)
        out.append((scores[i] - mean) / (variance**0.5 + 1e-6))
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans(), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=16))
def test_grpo_equals_a_loop_over_rows(cases: list[tuple[int, bool, int, int]]) -> None:
    scores, scored, uid, traj = (list(column) for column in zip(*cases, strict=True))
    rewards, mask = outcome([float(s) for s in scores])
    mask &= torch.tensor(scored).unsqueeze(-1)
    got = grpo(rewards, mask, torch.tensor(uid), traj_uid=torch.tensor(traj)).advantages[:, -1].tolist()
    assert got == pytest.approx(loop_grpo([float(s) for s in scores], scored, uid, traj), abs=1e-5)


def test_no_rows_and_no_positions_are_fine() -> None:
    empty = torch.zeros(0, 3)
    assert grpo(empty, empty.bool(), torch.zeros(0, dtype=torch.long), traj_uid=torch.zeros(0, dtype=torch.long)).advantages.shape == (0, 3)
    narrow = torch.zeros(2, 0)
    assert gae(narrow, narrow, narrow.bool()).advantages.shape == (2, 0)


# --- gae ------------------------------------------------------------------------------------------------------------------------------
def test_gae_of_one_row_by_hand() -> None:
    got = gae(torch.tensor([[0.0, 0, 1]]), torch.tensor([[0.5, 0.25, 0.5]]), torch.ones(1, 3, dtype=torch.bool), whiten=False)
    assert got.advantages.tolist() == [[0.5, 0.75, 0.5]]
    assert got.returns.tolist() == [[1.0, 1.0, 1.0]]


def test_gae_carries_through_tool_tokens() -> None:
    mask = torch.tensor([[True, True, True]])
    gapped = torch.tensor([[True, False, True, False, True]])
    short = gae(torch.tensor([[0.0, 0, 1]]), torch.tensor([[0.5, 0.25, 0.5]]), mask, gamma=0.9, lam=0.8, whiten=False)
    rewards, values = torch.tensor([[0.0, 9, 0, NAN, 1]]), torch.tensor([[0.5, 7, 0.25, NAN, 0.5]])
    long = gae(rewards, values, gapped, gamma=0.9, lam=0.8, whiten=False)
    assert torch.equal(long.advantages[gapped], short.advantages[0])
    assert torch.equal(long.returns[gapped], short.returns[0])
    assert long.advantages[~gapped].tolist() == [0.0, 0.0]


def loop_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    out, carried, following = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + gamma * following - value + gamma * lam * carried
        following = value
        out.append(carried)
    return out[::-1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-2, 2, width=32), st.floats(-2, 2, width=32)), min_size=1, max_size=37),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.sampled_from([0.0, 0.9, 1.0]),
)
def test_gae_equals_a_backward_loop(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = ([float(x) for x in column] for column in zip(*steps, strict=True))
    mask = torch.ones(1, len(steps), dtype=torch.bool)
    got = gae(torch.tensor([rewards]), torch.tensor([values]), mask, gamma=gamma, lam=lam, whiten=False)
    assert got.advantages[0].tolist() == pytest.approx(loop_gae(rewards, values, gamma, lam), abs=1e-4)


def test_G19_whitening_is_over_the_valid_tokens_of_the_whole_batch() -> None:
    rewards, mask = torch.tensor([[0.0, 0.0, 5.0], [10.0, 10.0, NAN]]), torch.tensor([[True, True, False], [True, True, False]])
    got = gae(rewards, torch.zeros(2, 3), mask, lam=0.0).advantages  # lam = 0, V = 0: the advantages are 0, 0 | 10, 10
    assert got[mask].tolist() == pytest.approx([-0.866025, -0.866025, 0.866025, 0.866025], abs=1e-5)  # variance with n - 1, as peers do
    assert got[~mask].tolist() == [0.0, 0.0]


def test_whitening_of_a_single_token_is_zero() -> None:
    mask = torch.tensor([[True, False]])
    assert gae(torch.tensor([[3.0, 0.0]]), torch.zeros(1, 2), mask).advantages.tolist() == [[0.0, 0.0]]


def test_whitening_does_not_see_padding_rows() -> None:
    rewards, mask = outcome([1, 0, 2])
    padded = gae(torch.cat([rewards, torch.zeros(3, 2)]), torch.zeros(6, 2), torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)]))
    assert torch.equal(padded.advantages[:3], gae(rewards, torch.zeros(3, 2), mask).advantages)


# --- estimate -------------------------------------------------------------------------------------------------------------------------
def test_estimate_passes_what_is_asked_for() -> None:
    rewards, mask = outcome([1, 0, 0, 0])
    uid, traj_uid = torch.zeros(4, dtype=torch.long), torch.tensor([0, 1, 1, 1])
    by_trajectory = estimate(rloo, token_level_rewards=rewards, response_mask=mask, uid=uid, traj_uid=traj_uid)
    by_row = estimate(rloo, token_level_rewards=rewards, response_mask=mask, uid=uid)
    assert rows(by_trajectory.advantages) == [1.0, -1.0, -1.0, -1.0]
    assert rows(by_row.advantages) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_estimate_takes_a_partial() -> None:
    rewards, mask = outcome([1, 0])
    uid = torch.zeros(2, dtype=torch.long)
    got = estimate(partial(grpo, scale_by_std=False), token_level_rewards=rewards, response_mask=mask, uid=uid, traj_uid=uid)
    assert rows(got.advantages) == [0.0, 0.0]  # one trajectory with two leaves


def test_estimators_and_losses_do_not_import_torch() -> None:
    code = "import operators.advantage, operators.loss, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
