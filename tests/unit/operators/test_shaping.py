from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from operators.advantage import gae, reinforce_plus_plus
from operators.shaping import kl_in_reward, overlong_penalty
from rlflow.data.column import Column
from rlflow.errors import DataError, UsageError
from rlflow.measure import collected, settled

NAN = float("nan")


def shaped(rewards: list[float], divergence: list[float], mask: list[int], **options: Any) -> list[float]:
    """One row; divergence: log π - log π_ref."""
    got = kl_in_reward(
        torch.tensor([rewards]), torch.tensor([divergence]), torch.zeros(1, len(mask)), torch.tensor([mask]).bool(), **options
    )
    return got[0].tolist()  # type: ignore[no-any-return]


# --- KL in the reward ---------------------------------------------------------------------------------------------------------------
def test_L19_the_kl_of_a_tools_token_is_in_no_return() -> None:
    """mask 1, 0, 1 and kl 0, 9, 0: the return is the reward, 1, and not 1 - 9."""
    rewards = kl_in_reward(
        torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.0, 9.0, 0.0]]), torch.zeros(1, 3), torch.tensor([[1, 0, 1]]), beta=1.0
    )
    assert rewards.tolist() == [[0.0, 0.0, 1.0]]
    mask = torch.tensor([[True, False, True]])
    assert gae(rewards, torch.zeros(1, 3), mask, whiten=False).returns.tolist() == [[1.0, 0.0, 1.0]]
    assert reinforce_plus_plus(rewards, mask).returns.tolist() == [[1.0, 0.0, 1.0]]


def test_kl_is_taken_off_each_trained_token() -> None:
    assert shaped([0, 0, 1], [0.2, 9.0, -0.1], [1, 0, 1], beta=0.5) == pytest.approx([-0.1, 0.0, 1.05])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.5, -0.5]), ("abs", [0.5, 0.5]), ("k2", [0.125, 0.125]), ("k3", [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5])],
)
def test_estimators_by_hand(estimator: str, expected: list[float]) -> None:
    assert shaped([0, 0], [0.5, -0.5], [1, 1], beta=1.0, estimator=estimator) == pytest.approx([-x for x in expected], rel=1e-6)


def test_k3_of_a_token_that_the_policy_has_given_up_is_finite() -> None:
    """Beyond 20 nats e^d goes on as its tangent: e^20 (1 + 9980) - 10001."""
    assert shaped([0], [-1e4], [1], beta=1.0, estimator="k3") == pytest.approx([-(math.exp(20) * 9981 - 10001)], rel=1e-6)


def test_G21_a_score_of_zero_is_a_score() -> None:
    """scores 0.0 where something else is 1.0: `a or b` took the 1. Here the token keeps its 0, with and without a penalty."""
    assert shaped([0.0, 0.0], [1.0, 1.0], [1, 1], beta=0.0) == [0.0, 0.0]
    assert shaped([0.0, 0.0], [1.0, 1.0], [1, 1], beta=0.25) == [-0.25, -0.25]


def test_G25_the_kl_that_is_logged_is_no_reward_that_was_written_over() -> None:
    rewards, log_probs = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    ref, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    collected()
    out = kl_in_reward(rewards, log_probs, ref, mask, beta=2.0)
    assert settled(collected()) == {"kl": 0.5}
    assert (log_probs - ref).tolist() == [[0.5, 0.5]]
    assert rewards.tolist() == [[0.0, 1.0]]
    assert out.tolist() == [[-1.0, 0.0]]
    out.add_(7)
    assert (rewards.tolist(), log_probs.tolist()) == ([[0.0, 1.0]], [[0.5, 0.5]])


def test_the_mean_kl_of_several_calls_is_over_all_their_tokens() -> None:
    """Two ranks with one token of 1 and three of 0: 0.25, not the mean 0.5 of two means."""
    collected()
    shaped([0.0], [1.0], [1], beta=1.0)
    shaped([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0], [1, 1, 0, 1], beta=1.0)
    assert settled(collected()) == {"kl": 0.25}


def test_what_stands_outside_the_mask_is_not_read() -> None:
    assert shaped([NAN, 1.0], [NAN, 0.5], [0, 1], beta=1.0) == [0.0, 0.5]


def test_a_log_prob_that_is_none_is_refused_and_named() -> None:
    with pytest.raises(DataError, match="log-probs of row 0"):
        shaped([0.0], [NAN], [1], beta=1.0)


def test_an_estimator_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="kl_in_reward: estimator is 'k4'"):
        shaped([0.0], [0.0], [1], beta=1.0, estimator="k4")


@pytest.mark.parametrize("how", ["kl", "overlong"])
def test_every_layout_gives_the_same(how: str) -> None:
    """Right-padded, jagged, Columns: three rows of 3, 1 and 2 tokens, the last without a trained one."""
    lists = {"rewards": [[0.0, 9.0, 1.0], [2.0], [3.0, 3.0]], "log_probs": [[0.5, 9.0, 0.25], [1.0], [9.0, 9.0]]}
    shown = [[True, False, True], [True], [False, False]]

    def call(rewards: Any, log_probs: Any, mask: Any) -> Any:
        if how == "overlong":
            return overlong_penalty(rewards, mask, limit=2, buffer=2)
        return kl_in_reward(rewards, log_probs, rewards, mask, beta=1.0)

    expected = [[-0.5, 0.0, 1.75], [3.0], [0.0, 0.0]] if how == "kl" else [[0.0, 0.0, 0.0], [1.5], [0.0, 0.0]]
    columns: list[Any] = [*(Column.ragged("f32", rows) for rows in lists.values()), Column.ragged("flag", shown)]
    assert call(*columns).to_list() == [pytest.approx(row) for row in expected]
    jagged = [torch.nested.nested_tensor([torch.tensor(x) for x in rows], layout=torch.jagged) for rows in (*lists.values(), shown)]
    assert [row.tolist() for row in call(*jagged).unbind()] == [pytest.approx(row) for row in expected]


# --- overlong -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tokens", "expected"), [(0, 0.0), (5, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (12, -1.0)])
def test_the_soft_overlong_penalty_by_hand(tokens: int, expected: float) -> None:
    """Limit 10, buffer 4: nothing up to 6, then a quarter a token, all of it from 10 on; at the last trained token."""
    mask = torch.arange(12)[None] < tokens
    got = overlong_penalty(torch.zeros(1, 12), mask, limit=10, buffer=4)
    assert got.sum().item() == pytest.approx(expected)
    assert got[0, : max(tokens - 1, 0)].abs().sum() == 0


def test_a_tools_tokens_make_no_answer_longer() -> None:
    mask = torch.tensor([[1, 0, 0, 0, 1, 0]])
    assert overlong_penalty(torch.tensor([[0.0, 0, 0, 0, 1, 0]]), mask, limit=4, buffer=2, penalty=0.5).tolist() == [[0, 0, 0, 0, 1, 0]]
    assert overlong_penalty(torch.tensor([[0.0, 0, 0, 0, 1, 0]]), mask, limit=2, buffer=1, penalty=0.5).tolist() == [[0, 0, 0, 0, 0.5, 0]]


def test_rows_in_the_buffer_are_counted() -> None:
    collected()
    overlong_penalty(torch.zeros(3, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]), limit=4, buffer=2)
    assert collected() == {"overlong_rows": 2.0}


@pytest.mark.parametrize(("limit", "buffer"), [(10, 0), (10, 11), (0, 0)])
def test_a_buffer_that_is_none_is_refused(limit: int, buffer: int) -> None:
    with pytest.raises(UsageError, match="0 < buffer <= limit"):
        overlong_penalty(torch.zeros(1, 1), torch.ones(1, 1), limit=limit, buffer=buffer)
