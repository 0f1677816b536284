"""The rules that hold for every shipped estimator, one test a rule; what each computes is in test_advantage.py and test_estimators.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import operators.advantage as shipped
from operators.fields import TokenRewards
from operators.records import Advantage
from rlflow import Record
from rlflow.data.column import Column
from rlflow.errors import DataError

NAN = float("nan")


class Batch(NamedTuple):
    """What every estimator can be called with. uid 0: trajectories 0, 1 and 2, which has two leaves; uid 1: 0 and 1."""

    rewards: Any
    mask: Any
    uid: Any
    traj_uid: Any
    values: Any
    baselines: Any


Estimator = Callable[[Batch], Advantage]


def group_relative(fn: Any) -> Estimator:
    return lambda b: fn(b.rewards, b.mask, b.uid, traj_uid=b.traj_uid)


class Only(Record):
    token_level_rewards: TokenRewards


def states_of(b: Batch) -> Any:
    """One state for all tokens, in the layout of the mask."""
    if isinstance(b.mask, Column):
        return Column("i64", np.ones(len(b.mask.values), np.int64), b.mask.offsets)
    if b.mask.is_nested:
        return torch.nested.nested_tensor_from_jagged(torch.ones_like(b.mask.values(), dtype=torch.long), b.mask.offsets())
    return torch.ones(b.mask.shape, dtype=torch.long)


GROUP_RELATIVE: dict[str, Estimator] = {
    "grpo": group_relative(shipped.grpo),
    "dr_grpo": group_relative(partial(shipped.grpo, scale_by_std=False)),
    "grpo_leave_one_out": group_relative(partial(shipped.grpo, leave_one_out=True)),
    "rloo": group_relative(shipped.rloo),
    "opo": group_relative(shipped.opo),
    "gpg": group_relative(shipped.gpg),
    "gpg_comparable": group_relative(partial(shipped.gpg, counted="comparable")),
    "grpo_passk": group_relative(shipped.grpo_passk),
    "maxrl": group_relative(shipped.maxrl),
    "reinforce_plus_plus_baseline": group_relative(shipped.reinforce_plus_plus_baseline),
    "gdpo": lambda b: shipped.gdpo(Only(token_level_rewards=b.rewards), b.mask, b.uid, traj_uid=b.traj_uid),
    "gigpo": lambda b: shipped.gigpo(b.rewards, b.mask, b.uid, states_of(b), traj_uid=b.traj_uid),
}
WHITENED_GROUPS = ("reinforce_plus_plus_baseline", "gdpo")
SCORED = [name for name in GROUP_RELATIVE if name != "gigpo"]  # by the score of a row alone; gigpo: test_step_advantages.py
ALONG_A_ROW: dict[str, Estimator] = {
    "reinforce": lambda b: shipped.reinforce(b.rewards, b.mask, gamma=0.9),
    "remax": lambda b: shipped.remax(b.rewards, b.baselines, b.mask),
    "distill": lambda b: shipped.distill(b.rewards, b.values, b.mask),
    "gae_raw": lambda b: shipped.gae(b.rewards, b.values, b.mask, gamma=0.9, lam=0.8, whiten=False),
}
WHITENED: dict[str, Estimator] = {
    "reinforce_plus_plus": lambda b: shipped.reinforce_plus_plus(b.rewards, b.mask, gamma=0.9),
    "gae": lambda b: shipped.gae(b.rewards, b.values, b.mask, gamma=0.9, lam=0.8),
}
ALL = GROUP_RELATIVE | ALONG_A_ROW | WHITENED
named = pytest.mark.parametrize("name", ALL)
grouped = pytest.mark.parametrize("name", GROUP_RELATIVE)

MASK = [[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]]


def batch(scores: tuple[float, ...] = (1.0, 0.0, 3.0, 3.0, 2.0, 0.5)) -> Batch:
    mask = torch.tensor(MASK, dtype=torch.bool)
    rewards = torch.full(mask.shape, NAN).where(~mask, torch.zeros(()))
    for row, score in enumerate(scores):
        rewards[row, int(mask[row].nonzero()[-1])] = score
    values = torch.linspace(-1, 1, mask.numel()).reshape(mask.shape).where(mask, torch.tensor(NAN))
    uid, traj_uid = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 2, 0, 1])
    return Batch(rewards, mask, uid, traj_uid, values, torch.tensor([0.5] * 6))


def both(result: Advantage) -> list[torch.Tensor]:
    return [result.advantages, result.returns]


def test_every_shipped_estimator_is_held_to_the_rules() -> None:
    called = {*ALL, "whiten", "estimate", "AdvantageFn"}  # whiten: test_estimators.py; the others are none
    assert set(shipped.__all__) <= called


@named
def test_nan_outside_the_mask_is_not_read_and_zero_is_written(name: str) -> None:
    given = batch()
    for x in both(ALL[name](given)):
        assert x.isfinite().all()
        assert x[~given.mask].abs().sum() == 0
        assert (x.dtype, x.shape) == (torch.float32, given.mask.shape)


@named
def test_nan_inside_the_mask_names_the_row(name: str) -> None:
    given = batch()
    given.rewards[4, 2] = NAN
    with pytest.raises(DataError, match=r"(token_level_rewards|teacher_log_probs) of row 4"):
        ALL[name](given)


@named
def test_row_without_a_trained_token_gets_zero_and_changes_no_other_row(name: str) -> None:
    given = batch()
    more = Batch(
        torch.cat([given.rewards, torch.full((2, 6), 8.0)]), torch.cat([given.mask, torch.zeros(2, 6, dtype=torch.bool)]),
        torch.cat([given.uid, torch.tensor([0, -1])]), torch.cat([given.traj_uid, torch.tensor([9, 0])]),
        torch.cat([given.values, torch.full((2, 6), 5.0)]), torch.cat([given.baselines, torch.tensor([NAN, 3.0])]),
    )  # fmt: skip
    for alone, x in zip(both(ALL[name](given)), both(ALL[name](more)), strict=True):
        assert torch.equal(x[:6], alone)
        assert x[6:].abs().sum() == 0


@named
def test_batch_in_which_nothing_is_trained_gives_zeros(name: str) -> None:
    given = batch()._replace(mask=torch.zeros(6, 6, dtype=torch.bool))
    assert all(x.abs().sum() == 0 for x in both(ALL[name](given)))


@named
def test_one_trained_token_in_the_whole_batch_gives_no_nan(name: str) -> None:
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[1, 0] = True
    for x in both(ALL[name](batch()._replace(mask=mask))):
        assert x.isfinite().all()
        assert x[~mask].abs().sum() == 0


@grouped
def test_G1_trajectory_alone_in_its_group_gets_zero(name: str) -> None:
    given = batch()._replace(uid=torch.tensor([0, 0, 0, 0, 1, 2]))
    got = GROUP_RELATIVE[name](given).advantages
    assert got[4:].abs().sum() == 0
    assert got[:4].abs().sum() > 0


@grouped
def test_G1_leaves_of_one_trajectory_alone_in_its_group_get_zero(name: str) -> None:
    given = batch()._replace(uid=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert GROUP_RELATIVE[name](given).advantages[2:4].abs().sum() == 0


@pytest.mark.parametrize("name", [n for n in SCORED if n not in WHITENED_GROUPS])
@pytest.mark.parametrize("score", [0.9, 0.1, 1 / 3, -1e4])
def test_G2_group_of_equal_scores_gets_exactly_zero(name: str, score: float) -> None:
    got = GROUP_RELATIVE[name](batch((score, score, score, score, 1.0, 0.0))).advantages
    assert got[:4].abs().max() == 0
    assert got[4:].abs().max() > 0


@pytest.mark.parametrize("name", [n for n in SCORED if n not in WHITENED_GROUPS])
def test_G2_scores_that_only_the_rounding_of_their_parts_sets_apart_are_equal(name: str) -> None:
    """.3 + .3 + .3 is .90000004 in float32, .9 is .89999998. One reward a row has nothing to add up: there every ulp counts."""
    given = batch((0.9, 0.9, 0.9, 0.9, 1.0, 0.0))
    parts = given.rewards.clone()
    mask = torch.ones_like(given.mask)
    parts[:, :] = 0
    parts[0, :3], parts[1, 0], parts[2, :2], parts[3, 1:3] = 0.3, 0.9, torch.tensor([0.2, 0.7]), torch.tensor([0.7, 0.2])
    parts[4, 0] = 1.0
    got = GROUP_RELATIVE[name](given._replace(rewards=parts, mask=mask)).advantages
    assert got[:4].abs().max() == 0
    assert got[4:].abs().max() > 0


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("score", [0.9, 0.1, 1 / 3, -1e4])
def test_G2_batch_of_equal_scores_gets_exactly_zero(name: str, score: float) -> None:
    assert GROUP_RELATIVE[name](batch((score,) * 6)).advantages.abs().max() == 0


@pytest.mark.parametrize("name", WHITENED)
def test_G2_equal_numbers_are_whitened_to_exactly_zero(name: str) -> None:
    mask = torch.tensor([[True, False]] * 3)
    given = batch()._replace(rewards=torch.full((3, 2), 0.1), values=torch.full((3, 2), 0.3), mask=mask)
    assert WHITENED[name](given).advantages.abs().max() == 0


@grouped
def test_G4_every_group_is_compared_and_none_with_another(name: str) -> None:
    """bs 8, gs 4: rows 4 .. 7 are a group of their own, whatever the rows of the first are."""
    mask = torch.ones(8, 1, dtype=torch.bool)
    uid = torch.tensor([0] * 4 + [1] * 4)
    first = batch()._replace(rewards=torch.tensor([[1.0], [0], [0], [0], [1], [0], [0], [3]]), mask=mask, uid=uid, traj_uid=None)
    got = GROUP_RELATIVE[name](first).advantages.flatten()
    for group in (got[:4], got[4:]):
        assert group.max() > 0
    if name not in ("grpo_passk", "maxrl"):
        assert got[:4].sum().item() == pytest.approx(0, abs=1e-6)
        assert got[4:].sum().item() == pytest.approx(0, abs=1e-6)


@grouped
def test_G8_padding_rows_change_no_statistic(name: str) -> None:
    """rewards 1, 0 and two copies of the first rows: .707 must not become .866."""
    rewards, mask = torch.tensor([[1.0], [0.0]]), torch.ones(2, 1, dtype=torch.bool)
    given = batch()._replace(rewards=rewards, mask=mask, uid=torch.tensor([4, 4]), traj_uid=None)
    padded = given._replace(
        rewards=torch.cat([rewards, rewards]), mask=torch.cat([mask, torch.zeros(2, 1, dtype=torch.bool)]), uid=torch.tensor([4, 4, -1, -2])
    )
    alone, got = GROUP_RELATIVE[name](given).advantages, GROUP_RELATIVE[name](padded).advantages
    assert torch.equal(got[:2], alone)
    assert got[2:].abs().sum() == 0


@pytest.mark.parametrize("name", SCORED)
def test_G15_fragments_of_a_trajectory_count_once(name: str) -> None:
    """Two fragments of each trajectory give what one of each gives."""
    one = batch()._replace(rewards=torch.tensor([[1.0], [0.0], [3.0]]), mask=torch.ones(3, 1, dtype=torch.bool), uid=torch.zeros(3).long())
    single = GROUP_RELATIVE[name](one._replace(traj_uid=torch.arange(3))).advantages
    twice = [0, 0, 1, 1, 2, 2]
    two = one._replace(rewards=one.rewards[twice], mask=one.mask[twice], uid=one.uid[twice], traj_uid=torch.tensor(twice))
    forked = GROUP_RELATIVE[name](two).advantages
    if name in WHITENED_GROUPS:  # whitened over tokens: the variance of six is 2 SS / 5, that of three SS / 2
        single = single * 1.25**0.5
    torch.testing.assert_close(forked, single[twice], rtol=1e-6, atol=1e-7)


@named
def test_G24_results_own_their_memory_and_G25_inputs_are_not_written(name: str) -> None:
    given = batch()
    before = [x.clone() for x in given]
    result = ALL[name](given)
    returns = result.returns.clone()
    result.advantages.fill_(99.0)
    assert torch.equal(result.returns, returns)
    for x, old in zip(given, before, strict=True):
        torch.testing.assert_close(x, old, rtol=0, atol=0, equal_nan=True)


@named
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_mask_may_be_of_any_dtype(name: str, dtype: torch.dtype) -> None:
    given = batch()
    for expected, x in zip(both(ALL[name](given)), both(ALL[name](given._replace(mask=given.mask.to(dtype)))), strict=True):
        assert torch.equal(x, expected)


# --- layouts --------------------------------------------------------------------------------------------------------------------------
LENGTHS = [4, 1, 3, 6, 6, 3]  # of the rows with what stands behind their last trained token


def in_columns(x: torch.Tensor, dtype: str) -> Column:
    return Column.ragged(dtype, [row[:n].numpy() for row, n in zip(x, LENGTHS, strict=True)])


def as_columns(given: Batch) -> Batch:
    return given._replace(
        rewards=in_columns(given.rewards, "f32"), mask=in_columns(given.mask, "flag"), values=in_columns(given.values, "f32"),
        uid=Column.scalars("i64", given.uid.numpy()), traj_uid=Column.scalars("i64", given.traj_uid.numpy()),
    )  # fmt: skip


def as_jagged(given: Batch) -> Batch:
    offsets = torch.tensor([0, *np.cumsum(LENGTHS).tolist()])

    def jagged(x: torch.Tensor) -> torch.Tensor:
        values = torch.cat([row[:n] for row, n in zip(x, LENGTHS, strict=True)])
        return torch.nested.nested_tensor_from_jagged(values, offsets=offsets)

    return given._replace(rewards=jagged(given.rewards), mask=jagged(given.mask), values=jagged(given.values))


@named
def test_columns_give_columns_with_the_numbers_of_padded_tensors(name: str) -> None:
    given = batch()
    result = ALL[name](as_columns(given))
    for padded, x in zip(both(ALL[name](given)), both(result), strict=True):
        assert isinstance(x, Column)
        assert x == in_columns(padded, "f32")


@named
def test_jagged_tensors_give_jagged_tensors_with_the_numbers_of_padded_ones(name: str) -> None:
    given = batch()
    jagged = as_jagged(given)
    for padded, x in zip(both(ALL[name](given)), both(ALL[name](jagged)), strict=True):
        assert x.is_nested
        assert torch.equal(x.values(), torch.cat([row[:n] for row, n in zip(padded, LENGTHS, strict=True)]))
        assert (x * jagged.rewards.nan_to_num()).is_nested  # of the very offsets of the input, so that they may meet


@named
def test_results_do_not_depend_on_the_order_of_rows(name: str) -> None:
    given, order = batch(), torch.tensor([3, 5, 0, 4, 2, 1])
    shuffled = Batch(*(x[order] for x in given))
    for expected, x in zip(both(ALL[name](given)), both(ALL[name](shuffled)), strict=True):
        torch.testing.assert_close(x, expected[order], rtol=1e-6, atol=1e-7)


def test_mixed_layouts_are_refused() -> None:
    given = batch()
    with pytest.raises(DataError, match="`token_level_rewards` is right-padded, `response_mask` is a ragged Column"):
        shipped.grpo(given.rewards, as_columns(given).mask, given.uid)


def test_other_widths_are_refused() -> None:
    given = batch()
    with pytest.raises(DataError, match=r"`values` is \[6, 5\], `response_mask` is \[6, 6\]"):
        shipped.gae(given.rewards, given.values[:, :5], given.mask)


def test_a_uid_too_few_is_refused() -> None:
    given = batch()
    with pytest.raises(DataError, match=r"`uid` is \[5\], and there are 6 rows"):
        shipped.grpo(given.rewards, given.mask, given.uid[:5])
