"""gigpo, gdpo and distillation, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from operators.advantage import distill, gdpo, gigpo
from operators.fields import TokenRewards
from rlflow import Record
from rlflow.errors import DataError, UsageError

NAN = float("nan")
TWO = torch.zeros(2, dtype=torch.long)


# --- gigpo ----------------------------------------------------------------------------------------------------------------------------
def two_episodes(states: list[list[int]], rewards: list[list[float]], **options: Any) -> list[list[float]]:
    """Two rows of two turns, of a token each, with a tool's token between them."""
    mask = torch.tensor([[True, False, True]] * 2)
    spread = [torch.tensor([[a, NAN, b] for a, b in rows]) for rows in (states, rewards)]
    got = gigpo(spread[1], mask, TWO, spread[0].nan_to_num(-9).long(), gamma=0.5, scale_by_std=False, **options).advantages
    assert got[:, 1].tolist() == [0.0, 0.0]
    return got[:, [0, 2]].tolist()


def test_gigpo_adds_what_steps_of_one_state_were_worth() -> None:
    """Episodes ±0.5. In state 7 returns 0.5 and 0: ±0.25; in state 8 returns 1 and 0: ±0.5."""
    assert two_episodes([[7, 8], [7, 8]], [[0, 1], [0, 0]]) == [[0.75, 1.0], [-0.75, -1.0]]


def test_gigpo_step_alone_in_its_state_gets_the_episode_part_alone() -> None:
    assert two_episodes([[7, 8], [7, 9]], [[0, 1], [0, 0]]) == [[0.75, 0.5], [-0.75, -0.5]]


def test_gigpo_steps_in_a_state_that_nobody_knows_are_not_compared() -> None:
    assert two_episodes([[0, 0], [0, 0]], [[0, 1], [0, 0]]) == [[0.5, 0.5], [-0.5, -0.5]]


def test_gigpo_a_state_visited_twice_by_one_trajectory_holds_two_steps() -> None:
    """State 7: returns 0.5, 1 | 0: mean 0.5."""
    assert two_episodes([[7, 7], [7, 9]], [[0, 1], [0, 0]]) == [[0.5, 1.0], [-1.0, -0.5]]


def test_gigpo_weighs_the_step_part() -> None:
    assert two_episodes([[7, 8], [7, 8]], [[0, 1], [0, 0]], step_weight=2.0) == [[1.0, 1.5], [-1.0, -1.5]]
    assert two_episodes([[7, 8], [7, 8]], [[0, 1], [0, 0]], step_weight=0.0) == [[0.5, 0.5], [-0.5, -0.5]]


def test_gigpo_scales_both_parts_by_their_own_deviation() -> None:
    mask = torch.ones(2, 1, dtype=torch.bool)
    got = gigpo(torch.tensor([[3.0], [1.0]]), mask, TWO, torch.tensor([[7], [7]]), epsilon=0.0)  # ±1 / √2 for the episode, and for the step
    assert got.advantages.flatten().tolist() == pytest.approx([1.4142135, -1.4142135])


def test_gigpo_step_rewards_are_those_of_the_step_part() -> None:
    """The episode was scored 1 and 0; its environment gave 2 in the first turn of the second row: G = 0, 0 | 2, 0."""
    got = gigpo(
        torch.tensor([[0.0, 0, 1], [0, 0, 0]]), torch.tensor([[True, False, True]] * 2), TWO, torch.tensor([[7, 0, 8]] * 2),
        torch.tensor([[0.0, 0, 0], [2, 0, 0]]), gamma=0.5, scale_by_std=False,
    )  # fmt: skip
    assert got.advantages[:, [0, 2]].tolist() == [[-0.5, 0.5], [0.5, -0.5]]


def test_gigpo_turn_is_a_run_of_tokens_and_each_gets_its_advantage() -> None:
    mask = torch.tensor([[True, True, False, True, True], [False, True, True, True, False]])
    states = torch.tensor([[7, 7, 0, 8, 8], [0, 7, 7, 8, 0]])  # in row 1 the second turn follows at once: the state changes
    rewards = torch.tensor([[0.0, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    got = gigpo(rewards, mask, TWO, states, gamma=0.5, scale_by_std=False).advantages
    assert got.tolist() == [[0.75, 0.75, 0.0, 1.0, 1.0], [0.0, -0.75, -0.75, -1.0, 0.0]]


def test_gigpo_states_of_two_prompts_do_not_meet() -> None:
    mask = torch.ones(4, 1, dtype=torch.bool)
    got = gigpo(torch.tensor([[1.0], [0], [9], [5]]), mask, torch.tensor([0, 0, 1, 1]), torch.full((4, 1), 7), scale_by_std=False)
    assert got.advantages.flatten().tolist() == [1.0, -1.0, 4.0, -4.0]


@pytest.mark.parametrize("score", [0.9, 0.1, 1 / 3, -1e4])
def test_G2_gigpo_of_equal_scores_and_returns_is_exactly_zero(score: float) -> None:
    mask = torch.ones(7, 1, dtype=torch.bool)
    got = gigpo(torch.full((7, 1), score), mask, torch.zeros(7).long(), torch.full((7, 1), 3))
    assert got.advantages.abs().max() == 0


def test_G15_gigpo_leaves_count_once_in_the_episode_part() -> None:
    """Scores 1, 0, 0 of which the last two are leaves of one trajectory: μ = 0.5; their steps began in states of their own."""
    mask, uid = torch.ones(3, 1, dtype=torch.bool), torch.zeros(3).long()
    got = gigpo(
        torch.tensor([[1.0], [0], [0]]), mask, uid, torch.tensor([[1], [2], [3]]), traj_uid=torch.tensor([0, 1, 1]), scale_by_std=False
    )
    assert got.advantages.flatten().tolist() == [0.5, -0.5, -0.5]


def test_gigpo_trajectory_alone_in_its_group_gets_zero_though_it_came_back_to_a_state() -> None:
    mask = torch.tensor([[True, False, True]])
    got = gigpo(torch.tensor([[0.0, 0, 1]]), mask, TWO[:1], torch.tensor([[7, 0, 7]]))
    assert got.advantages.tolist() == [[0.0, 0.0, 0.0]]


# --- gdpo -----------------------------------------------------------------------------------------------------------------------------
class Rewards(Record):
    correct: TokenRewards
    format: TokenRewards


def rewards_of(correct: list[float], format: list[float]) -> Rewards:
    return Rewards(correct=torch.tensor(correct).unsqueeze(-1), format=torch.tensor(format).unsqueeze(-1))


def test_gdpo_gives_rewards_of_any_scale_an_equal_say() -> None:
    """Each is ±1 / √2 in its group; with their sum 1, 10 the second alone would count."""
    mask = torch.ones(4, 1, dtype=torch.bool)
    uid = torch.tensor([0, 0, 1, 1])
    got = gdpo(rewards_of(correct=[1, 0, 1, 0], format=[0, 10, 10, 0]), mask, uid, epsilon=0.0).advantages.flatten()
    assert got.tolist() == pytest.approx([0.0, 0.0, 1.2247449, -1.2247449])  # ±√2 and two 0: variance 4 / 3


def test_gdpo_weights_by_name() -> None:
    mask, rewards = torch.ones(2, 1, dtype=torch.bool), rewards_of(correct=[1, 0], format=[0, 10])
    assert gdpo(rewards, mask, TWO, epsilon=0.0).advantages.flatten().tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    got = gdpo(rewards, mask, TWO, weights={"format": 0.5}, epsilon=0.0).advantages.flatten()
    assert got.tolist() == pytest.approx([0.70710678, -0.70710678])


def test_gdpo_reward_without_a_difference_adds_nothing() -> None:
    mask = torch.ones(3, 1, dtype=torch.bool)
    got = gdpo(rewards_of(correct=[1, 0, 0], format=[0.9, 0.9, 0.9]), mask, torch.zeros(3).long()).advantages
    assert got.flatten().tolist() == pytest.approx([1.1547005, -0.5773503, -0.5773503])  # 2/3, -1/3, -1/3 whitened


def test_gdpo_refuses_a_weight_of_no_reward() -> None:
    with pytest.raises(UsageError, match="gdpo weighs formt; the rewards are correct, format"):
        gdpo(rewards_of(correct=[1, 0], format=[0, 1]), torch.ones(2, 1).bool(), TWO, weights={"formt": 1.0})


def test_gdpo_names_the_reward_that_is_no_number() -> None:
    with pytest.raises(DataError, match=r"format of row 1 \(uid 0\)"):
        gdpo(rewards_of(correct=[1, 0], format=[0, NAN]), torch.ones(2, 1).bool(), TWO)


# --- distillation ---------------------------------------------------------------------------------------------------------------------
def test_distill_by_hand() -> None:
    mask = torch.tensor([[True, True, False]])
    got = distill(torch.tensor([[-1.0, -0.25, NAN]]), torch.tensor([[-0.5, -1.25, NAN]]), mask)
    assert got.advantages.tolist() == [[-0.5, 1.0, 0.0]]
    assert distill(torch.tensor([[-1.0]]), torch.tensor([[-0.5]]), torch.tensor([[True]]), coef=2.0).advantages.tolist() == [[-1.0]]


def test_distill_names_the_row_of_a_token_that_the_teacher_rules_out() -> None:
    with pytest.raises(DataError, match="teacher_log_probs of row 0"):
        distill(torch.tensor([[-float("inf")]]), torch.tensor([[-0.5]]), torch.tensor([[True]]))
