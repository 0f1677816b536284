"""A trajectory tree becomes leaf rows: literal trees, literal columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from operators.flatten import Row, Turn, chain, flatten
from rlflow.errors import DataError

SYSTEM = Turn(tokens=[1, 2], own=False)


def own(tokens: list[int], log_probs: list[float] | None, parent: int | None = None, versions: tuple[int, ...] = ()) -> Turn:
    return Turn(tokens=tokens, own=True, log_probs=log_probs, parent=parent, versions=versions)


def given(tokens: list[int], parent: int | None = None) -> Turn:
    return Turn(tokens=tokens, own=False, parent=parent)


def columns(row: Row) -> dict[str, list[Any]]:
    names = ("input_ids", "responses", "response_mask", "rollout_log_probs", "token_versions", "position_ids", "attention_mask")
    return {name: np.asarray(getattr(row, name)).tolist() for name in names}


def test_three_turns_are_laid_out_as_drawn() -> None:
    turns = [
        given([10]), given([20]), own([31, 32], [-0.5, -0.25], versions=(3, 4)), given([40]), own([51], [-1.0], versions=(4,)),
        given([60, 61]), own([71], [-2.0]),
    ]  # fmt: skip
    (row,) = flatten(chain(turns))
    assert columns(row) == {
        "input_ids": [10, 20, 31, 32, 40, 51, 60, 61, 71],
        "responses": [20, 31, 32, 40, 51, 60, 61, 71],
        "response_mask": [False, True, True, False, True, False, False, True],
        "rollout_log_probs": [0.0, -0.5, -0.25, 0.0, -1.0, 0.0, 0.0, -2.0],
        "token_versions": [-1, 3, 4, -1, 4, -1, -1, -1],
        "position_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "attention_mask": [True] * 9,
    }
    assert (row.leaf, row.path) == (0, (0, 1, 2, 3, 4, 5, 6))


def test_each_turn_keeps_the_state_it_began_in_and_what_it_was_given_where_it_trains() -> None:
    first = Turn(tokens=[31, 32], own=True, log_probs=[-0.5, -0.25], state=7, reward=0.5, parent=0)
    again = [Turn(tokens=[t], own=True, log_probs=[-1.0], state=9, reward=float(t), parent=2) for t in (51, 52)]
    one, other = flatten([given([10]), first, given([40], parent=1), *again])
    assert one.step_states.tolist() == [7, 7, 0, 9]
    assert one.step_rewards.tolist() == [0.0, 0.5, 0.0, 51.0]
    assert other.step_states.tolist() == [0, 0, 0, 9]  # the first turn trains in the first leaf
    assert other.step_rewards.tolist() == [0.0, 0.0, 0.0, 52.0]


def test_one_turn() -> None:
    (row,) = flatten(chain([SYSTEM, own([7, 8], [-0.5, -0.75])]))
    assert row.input_ids.tolist() == [1, 2, 7, 8]
    assert row.response_mask.tolist() == [False, True, True]
    assert row.rollout_log_probs.tolist() == [0.0, -0.5, -0.75]


def test_the_shared_prefix_of_a_fork_trains_once() -> None:
    turns = [
        SYSTEM,
        own([7], [-0.5], parent=0),
        given([3], parent=1),
        own([8], [-0.25], parent=2),
        given([4, 5], parent=1),
        own([9, 9], [-1.0, -2.0], parent=4),
    ]
    first, second = flatten(turns)
    assert first.input_ids.tolist() == [1, 2, 7, 3, 8]
    assert first.response_mask.tolist() == [False, True, False, True]
    assert first.rollout_log_probs.tolist() == [0.0, -0.5, 0.0, -0.25]
    assert second.input_ids.tolist() == [1, 2, 7, 4, 5, 9, 9]
    assert second.response_mask.tolist() == [False, False, False, False, True, True]
    assert second.rollout_log_probs.tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, -2.0]
    assert [(row.leaf, row.path) for row in (first, second)] == [(0, (0, 1, 2, 3)), (1, (0, 1, 4, 5))]


def test_a_forked_trajectory_of_three_turns_in_full() -> None:
    """S A1 U2 ─┬─ A2 U3 A3     and a third branch that forks off at once: A1' stands beside A1.
    └─ A2' U3' A3'"""
    turns = [
        given([10, 11]),
        own([21, 22], [-0.5, -0.25], parent=0, versions=(4, 5)),
        given([30], parent=1),
        own([41], [-1.0], parent=2, versions=(5,)),
        given([50, 51], parent=3),
        own([61, 62], [-2.0, -0.125], parent=4, versions=(5, 6)),
        own([71, 72], [-1.5, -0.75], parent=2, versions=(5, 5)),
        given([80], parent=6),
        own([91], [-3.0], parent=7, versions=(6,)),
        own([23], [-0.0625], parent=0, versions=(4,)),
    ]
    first, second, third = flatten(turns)
    no, yes = False, True
    assert columns(first) == {
        "input_ids": [10, 11, 21, 22, 30, 41, 50, 51, 61, 62],
        "responses": [11, 21, 22, 30, 41, 50, 51, 61, 62],
        "response_mask": [no, yes, yes, no, yes, no, no, yes, yes],
        "rollout_log_probs": [0.0, -0.5, -0.25, 0.0, -1.0, 0.0, 0.0, -2.0, -0.125],
        "token_versions": [-1, 4, 5, -1, 5, -1, -1, 5, 6],
        "position_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        "attention_mask": [True] * 10,
    }
    assert columns(second) == {
        "input_ids": [10, 11, 21, 22, 30, 71, 72, 80, 91],
        "responses": [11, 21, 22, 30, 71, 72, 80, 91],
        "response_mask": [no, no, no, no, yes, yes, no, yes],
        "rollout_log_probs": [0.0, 0.0, 0.0, 0.0, -1.5, -0.75, 0.0, -3.0],
        "token_versions": [-1, -1, -1, -1, 5, 5, -1, 6],
        "position_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "attention_mask": [True] * 9,
    }
    assert columns(third) == {
        "input_ids": [10, 11, 23],
        "responses": [11, 23],
        "response_mask": [no, yes],
        "rollout_log_probs": [0.0, -0.0625],
        "token_versions": [-1, 4],
        "position_ids": [0, 1, 2],
        "attention_mask": [True] * 3,
    }
    assert [(row.leaf, row.path) for row in (first, second, third)] == [(0, (0, 1, 2, 3, 4, 5)), (1, (0, 1, 2, 6, 7, 8)), (2, (0, 9))]


def test_a_leaf_may_have_nothing_to_train() -> None:
    """Both branches end with a turn that is not the model's: what it said is trained in the first."""
    first, second = flatten([SYSTEM, own([7], [-0.5], parent=0), given([3], parent=1), given([4], parent=1)])
    assert first.response_mask.tolist() == [False, True, False]
    assert second.response_mask.tolist() == [False, False, False]
    assert second.token_versions.tolist() == [-1, -1, -1]


def test_every_own_token_of_a_tree_trains_exactly_once() -> None:
    turns = [SYSTEM, *(own([7], [-1.0], parent=0) for _ in range(3)), given([3], parent=1), own([8, 9], [-1.0, -1.0], parent=4)]
    rows = flatten(turns)
    assert len(rows) == 3
    assert sum(int(row.response_mask.sum()) for row in rows) == 5


def test_two_samples_of_one_prompt_share_it_without_sharing_tokens_to_train() -> None:
    rows = flatten([SYSTEM, own([7], [-0.5], parent=0), own([7], [-0.5], parent=0)])
    assert [row.response_mask.tolist() for row in rows] == [[False, True], [False, True]]


def test_q20_a_failed_turn_without_tokens_trains_nothing() -> None:
    (row,) = flatten(chain([SYSTEM, own([], [])]))
    assert row.input_ids.tolist() == [1, 2]
    assert row.response_mask.tolist() == [False]


def test_no_own_token_at_all_gives_a_row_that_trains_nothing() -> None:
    (row,) = flatten(chain([SYSTEM, given([5])]))
    assert row.response_mask.tolist() == [False, False]
    assert row.rollout_log_probs.tolist() == [0.0, 0.0]


def test_a_single_token_has_no_next_token_position() -> None:
    (row,) = flatten([given([5])])
    assert row.input_ids.tolist() == [5]
    assert [getattr(row, name).shape for name in ("responses", "response_mask", "token_versions")] == [(0,)] * 3


def test_dtypes_are_those_of_the_fields() -> None:
    (row,) = flatten(chain([SYSTEM, own([7], [-0.5])]))
    dtypes = {name: str(getattr(row, name).dtype) for name in columns(row)}
    assert dtypes == {
        "input_ids": "int64",
        "responses": "int64",
        "response_mask": "bool",
        "rollout_log_probs": "float32",
        "token_versions": "int32",
        "position_ids": "int64",
        "attention_mask": "bool",
    }


def test_s13_trained_ids_are_the_sampled_ids() -> None:
    # A tokenizer that merges "ab" would encode the text of [5, 6] as [56]; only ids are handed on, so it cannot.
    (row,) = flatten(chain([SYSTEM, own([5, 6], [-1.0, -1.0]), given([3]), own([56], [-1.0])]))
    assert row.responses[row.response_mask].tolist() == [5, 6, 56]


def test_s14_a_later_prompt_that_rewrites_history_is_a_fork() -> None:
    # The second prompt drops the thinking tokens [7, 7] of the first turn: they train in their own leaf only.
    turns = [SYSTEM, own([7, 7, 8], [-1.0] * 3, parent=0), given([8, 3], parent=0), own([9], [-1.0], parent=2)]
    first, second = flatten(turns)
    assert first.responses[first.response_mask].tolist() == [7, 7, 8]
    assert second.input_ids.tolist() == [1, 2, 8, 3, 9]
    assert second.responses[second.response_mask].tolist() == [9]


def test_numpy_turns_are_taken_as_they_are() -> None:
    turn = Turn(tokens=np.array([7, 8]), own=True, log_probs=np.array([-0.5, -0.25], np.float32))  # type: ignore[arg-type]
    (row,) = flatten(chain([SYSTEM, turn]))
    assert row.rollout_log_probs.tolist() == [0.0, -0.5, -0.25]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([SYSTEM, own([7, 8], [-0.5], 0)], "turn 1 has 2 own tokens and log-probs for 1"),
        ([SYSTEM, own([7], None, 0)], "turn 1 has 1 own tokens and log-probs for none"),
        ([SYSTEM, own([7], [math.nan], 0)], "turn 1: log-prob of token 0 is nan"),
        ([SYSTEM, own([7], [-math.inf], 0)], "turn 1: log-prob of token 0 is -inf"),
        ([Turn(tokens=[1], own=False, log_probs=[-1.0])], "turn 0 has log-probs or versions but is not the model's own"),
        ([SYSTEM, own([7, 8], [-0.5, -0.5], 0, versions=(1,))], "turn 1 has 2 own tokens and versions for 1"),
        ([own([7, 8], [-0.5, -0.5])], "leaf 0 starts with the model's own token 7"),
        ([given([]), own([7], [-0.5], 0)], "leaf 0 starts with the model's own token 7"),
        ([given([])], "leaf 0 .* has no tokens"),
        ([], "a trajectory without turns"),
        ([SYSTEM, SYSTEM], "turn 1 has parent None"),
        ([SYSTEM, given([5], 2), given([6], 0)], "turn 1 follows turn 2"),
    ],
)
def test_a_broken_trajectory_is_refused_by_name(turns: list[Turn], message: str) -> None:
    with pytest.raises(DataError, match=message):
        flatten(turns)
