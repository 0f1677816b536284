"""Filters and masks: whole groups, trajectories and rows, on a record with a field of a user's own."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch

from operators.fields import Answer, B, InputIds, Uid
from operators.filters import keep_ended, keep_mixed, mask_overlong
from operators.reward import length_penalty
from rlflow import Record, RowsT, Tensor, f32
from rlflow.errors import DataError
from rlflow.measure import collected


class Rows(Record):
    """difficulty: what a user's own hop made, a number a row."""

    input_ids: InputIds
    uid: Uid
    answer: Answer
    difficulty: Annotated[Tensor, f32[B]]


def rows_of(uid: list[int]) -> Rows:
    """Row i holds the token i, the answer "i" and the difficulty i / 10."""
    n = len(uid)
    return Rows(
        input_ids=torch.arange(n)[:, None].expand(n, 3), uid=torch.tensor(uid), answer=[str(i) for i in range(n)],
        difficulty=torch.arange(n) / 10,
    )  # fmt: skip


def kept_of(rows: Rows) -> list[int]:
    """Which rows these are. Every field says the same, the user's own too: a filter that forgot one would have paired them wrongly."""
    found: list[int] = rows.input_ids[:, 0].tolist()
    assert rows.answer == [str(i) for i in found]
    assert rows.difficulty.tolist() == pytest.approx([i / 10 for i in found])
    assert len(rows.uid) == len(found)
    return found


# --- keep_mixed -----------------------------------------------------------------------------------------------------------------------
def scores(values: list[float]) -> torch.Tensor:
    """[B, 2], the score at the last position."""
    return torch.tensor([[0.0, value] for value in values])


def kept(values: list[float], group: int = 2) -> list[int]:
    rows = rows_of([10 + i // group for i in range(len(values))])
    return kept_of(keep_mixed(rows, scores(values), rows.uid))


def test_groups_whose_scores_are_all_alike_are_dropped_whole() -> None:
    assert kept([1, 1, 0, 1, 0, 0, 1, 0]) == [2, 3, 6, 7]


def test_groups_need_not_stand_together() -> None:
    rows = rows_of([7, 8, 7, 8])
    assert kept_of(keep_mixed(rows, scores([1, 0, 1, 1]), rows.uid)) == [1, 3]


def test_a_row_without_a_trained_token_makes_no_difference_where_the_mask_is_told() -> None:
    rows = rows_of([7, 7, 7, 8, 8, 8])
    mask = torch.tensor([[1, 1], [1, 1], [0, 0], [0, 0], [0, 1], [0, 1]])
    values = scores([1, 1, 0, 0, 0, 1])
    assert kept_of(keep_mixed(rows, values, rows.uid, mask)) == [3, 4, 5]
    assert kept_of(keep_mixed(rows, values, rows.uid)) == [0, 1, 2, 3, 4, 5]
    assert kept_of(keep_mixed(rows, values, rows.uid, torch.zeros(6, 2))) == []


def test_G2_rounding_is_no_difference() -> None:
    assert kept([0.9, 0.9, 0.9 + 6e-8], group=3) == []


def test_a_group_of_one_is_dropped() -> None:
    assert kept([1.0], group=1) == []


def test_a_score_that_is_no_number_names_its_row() -> None:
    with pytest.raises(DataError, match=r"row 1 \(uid 10\) has the score nan: drop it where it is judged"):
        kept([1.0, float("nan")])


def test_a_field_that_the_plan_dropped_is_not_asked_for() -> None:
    rows = object.__new__(Rows)
    object.__setattr__(rows, "uid", torch.tensor([1, 1, 2, 2]))
    object.__setattr__(rows, "answer", ["a", "b", "c", "d"])
    out = keep_mixed(rows, scores([0, 0, 0, 1]), rows.uid)
    assert vars(out).keys() == {"uid", "answer"}
    assert out.answer == ["c", "d"]


# --- keep_ended -----------------------------------------------------------------------------------------------------------------------
def ended(*rows: tuple[int, int, bool]) -> list[int]:
    """The rows that are kept of (uid, traj_uid, whether it was cut off)."""
    uid, traj_uid, is_truncated = (torch.tensor(column) for column in zip(*rows, strict=True))
    return kept_of(keep_ended(rows_of(uid.tolist()), is_truncated, uid, traj_uid))


def test_answers_that_were_cut_off_are_taken_out_of_their_group() -> None:
    assert ended((1, 0, True), (1, 1, False), (1, 2, False), (1, 3, True)) == [1, 2]


def test_a_group_of_which_one_answer_ended_is_dropped() -> None:
    assert ended((1, 0, True), (1, 1, False), (2, 0, False), (2, 1, False)) == [2, 3]


def test_a_trajectory_goes_with_any_of_its_leaves() -> None:
    assert ended((1, 0, True), (1, 0, False), (1, 1, False), (1, 2, False), (1, 2, False)) == [2, 3, 4]


def test_G13_a_group_that_only_a_length_penalty_tells_apart_is_dropped() -> None:
    """All of a group are right, and one is long: its shaped rewards are 1 and 0.8. The filter goes by what the verifier said: 1 and 1."""
    raw, mask = torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([[False, True], [True, True]])
    shaped = length_penalty(raw, mask, limit=1, per_token=0.2)
    rows = rows_of([5, 5])
    assert shaped.sum(-1).tolist() == pytest.approx([1.0, 0.8])
    assert kept_of(keep_mixed(rows, raw, rows.uid)) == []
    assert kept_of(keep_mixed(rows, shaped, rows.uid)) == [0, 1]  # what it would be fooled by


# --- any record ---------------------------------------------------------------------------------------------------------------------
class More(Rows):
    """A field that no operator of ours has heard of, with an axis of its own."""

    votes: Annotated[Tensor, f32[B, 2]]


@pytest.mark.parametrize("how", ["mixed", "ended"])
def test_a_filter_cuts_every_field_of_a_record_of_a_users_own(how: str) -> None:
    base = rows_of([1, 1, 1, 2, 2])
    rows = More(**vars(base), votes=torch.arange(10.0).reshape(5, 2))

    def filtered(rows: RowsT) -> RowsT:
        if how == "mixed":
            return keep_mixed(rows, scores([1, 1, 1, 0, 1]), base.uid)
        return keep_ended(rows, torch.tensor([0, 0, 1, 0, 1]).bool(), base.uid, torch.tensor([0, 1, 2, 0, 1]))

    out = filtered(rows)
    assert isinstance(out, More)
    assert vars(out).keys() == {"input_ids", "uid", "answer", "difficulty", "votes"}
    assert kept_of(out) == ([3, 4] if how == "mixed" else [0, 1])
    assert out.votes.tolist() == ([[6, 7], [8, 9]] if how == "mixed" else [[0, 1], [2, 3]])


# --- mask_overlong ------------------------------------------------------------------------------------------------------------------
def test_rows_that_were_cut_off_are_masked_and_counted() -> None:
    collected()
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]]).bool()
    assert mask_overlong(mask, torch.tensor([True, False, True])).int().tolist() == [[0, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert collected() == {"masked_rows": 1.0, "masked_tokens": 2.0}
    assert mask.sum() == 4


def test_masked_rows_keep_their_place_in_the_baseline() -> None:
    """Scores 1, 0, 0, the last cut off: with it the mean is 1/3, without it 1/2. The losses get the shorter mask."""
    from operators.advantage import grpo

    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), torch.ones(3, 2, dtype=torch.bool)
    advantages = grpo(rewards, mask, torch.tensor([4, 4, 4]), scale_by_std=False).advantages
    assert advantages[:, 1].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    trained = mask_overlong(mask, torch.tensor([False, False, True]))
    assert trained.any(-1).tolist() == [True, True, False]
