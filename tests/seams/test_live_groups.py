"""G: a group is whole or gone, a batch is counted in prompts, and what is dropped is refilled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from decide_world import World
from ring_cases import ONE, answer_first, boarded, dropped, land, sent

from operators.advantage import gae
from rlflow.data.rowplan import plan_rows
from rlflow.language.operator import declaration_of
from rlflow.run.controller.ids import GroupId, TrajectoryId
from rlflow.run.controller.schedule import Hop


# --- G10: more rows a prompt are more rows, and nothing else
def test_G10_a_batch_of_4_prompts_with_4_1_3_2_rows_is_one_batch() -> None:
    world = World(replace(ONE, groups_per_batch=4))
    world.begin()
    for uid, rows in enumerate((4, 1, 3)):
        world.land(TrajectoryId(uid, 0, 0), rows)
        assert boarded(world) == ()
    world.land(TrajectoryId(3, 0, 0), 2)
    assert boarded(world) == (0, 1, 2, 3)
    world.train()
    assert (world.state.published, world.state.totals.trained_rows) == (1, 10)


def test_G10_10_rows_of_4_prompts_in_mini_batches_of_2_are_2_optimizer_steps() -> None:
    plan = plan_rows(np.full(10, 5), np.repeat([0, 1, 2, 3], [4, 1, 3, 2]), multiple=4, pieces=8, dp=2, max_tokens=20, mini_batches=2)
    assert [len(plan.micros(rank)) for rank in range(2)] == [2, 2]


# --- G14: short groups, and the prompt that always makes them
def test_G14_a_group_of_4_with_an_empty_trajectory_is_refilled_not_shipped_as_3() -> None:
    world = World(replace(ONE, n=4))
    world.begin()
    for traj_uid in range(3):
        world.land(TrajectoryId(0, traj_uid, 0))
    assert sent(world.fail(TrajectoryId(0, 3, 0))) == ["0.3.1"]
    assert boarded(world) == ()
    world.land(TrajectoryId(0, 3, 1))
    assert world.training is not None
    assert [str(trajectory) for trajectory in world.training.trajectories] == ["0.0.0", "0.1.0", "0.2.0", "0.3.1"]


def test_G14_a_poisoned_prompt_is_dropped_whole_and_its_seat_refilled() -> None:
    world = World(replace(ONE, n=4, max_attempts=2))
    world.begin()
    for traj_uid in range(3):
        world.land(TrajectoryId(0, traj_uid, 0))
    world.fail(TrajectoryId(0, 3, 0))
    actions = world.fail(TrajectoryId(0, 3, 1))
    assert dropped(actions) == [(0, "attempts")]
    assert sent(actions) == ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]


# --- G17: a filter that rejects 1 of 4
def test_G17_a_batch_of_4_of_which_1_is_rejected_is_filled_up_by_a_fifth() -> None:
    world = World(replace(ONE, groups_per_batch=4, hops=(Hop("filter", per="group"),)))
    world.begin()
    land(world, 0, 1, 2, 3)
    for uid in (0, 1, 3):
        world.ran("filter", GroupId(0, uid))
    actions = world.ran("filter", GroupId(0, 2), "drop")
    assert dropped(actions) == [(2, "filter")]
    assert sent(actions) == ["4.0.0"]
    land(world, 4)
    world.ran("filter", GroupId(0, 4))
    assert boarded(world) == (0, 1, 3, 4)


def test_G17_a_filter_that_rejects_every_fourth_group_holds_no_batch_up() -> None:
    world = World(replace(ONE, groups_per_batch=4, max_lag=1, last=4, hops=(Hop("filter", per="group"),)))
    world.begin()
    while world.finish is None:
        run = next(iter(world.runs), None)
        if run is not None and isinstance(run[1], GroupId) and run[1].uid % 4 == 3:
            world.ran(*run, "drop")
        else:
            answer_first(world)
    assert world.finish.outcome == "done"
    assert world.published == 5
    assert all(uid % 4 == 3 for uid in world.dropped)


# --- G19: a statistic of the batch, over ranks
def test_G19_whitening_of_0_0_on_one_rank_and_10_10_on_the_other_is_over_both() -> None:
    """It stands before the rows are cut, so there is no slice of a rank to whiten and no collective that an empty one could skip."""
    assert declaration_of(gae).per == "batch"
    rewards, mask = torch.tensor([[0.0, 0.0], [10.0, 10.0]]), torch.ones(2, 2, dtype=torch.bool)
    got = gae(rewards, torch.zeros(2, 2), mask, lam=0.0).advantages
    assert got.tolist() == [pytest.approx([-0.866025] * 2, abs=1e-5), pytest.approx([0.866025] * 2, abs=1e-5)]  # n - 1 = 3: sqrt(3) / 2


def test_G19_rows_without_a_token_change_no_statistic() -> None:
    rewards, mask = torch.tensor([[0.0, 0.0], [10.0, 10.0], [5.0, 5.0]]), torch.tensor([[True, True], [True, True], [False, False]])
    got = gae(rewards, torch.zeros(3, 2), mask, lam=0.0).advantages
    assert got.tolist() == [pytest.approx([-0.866025] * 2, abs=1e-5), pytest.approx([0.866025] * 2, abs=1e-5), [0.0, 0.0]]
