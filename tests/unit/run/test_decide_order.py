from __future__ import annotations

import pytest

from rlflow.errors import DataError
from rlflow.run.controller.order import prompt_of


def test_each_epoch_draws_every_row_once() -> None:
    drawn = [prompt_of(uid, 5, seed=7) for uid in range(10)]
    assert [epoch for epoch, _ in drawn] == [0] * 5 + [1] * 5
    assert sorted(row for _, row in drawn[:5]) == [0, 1, 2, 3, 4]
    assert sorted(row for _, row in drawn[5:]) == [0, 1, 2, 3, 4]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(prompt_of(epoch * 50 + i, 50, seed)[1] for i in range(50)) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9


def test_the_order_does_not_depend_on_what_was_asked_before() -> None:
    straight = [prompt_of(uid, 4, seed=1) for uid in range(40)]
    assert [prompt_of(uid, 4, seed=1) for uid in reversed(range(40))] == straight[::-1]


def test_a_uid_far_away_has_a_prompt() -> None:
    epoch, row = prompt_of(2**53 - 2, 3, seed=0)
    assert epoch == (2**53 - 2) // 3
    assert 0 <= row < 3


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="data set of 0 rows"):
        prompt_of(0, 0, seed=0)
