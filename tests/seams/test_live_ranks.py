"""D, Q15: what all ranks must do alike is fixed for all of them at once, from the lengths of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from small_loop import TrainRows

from operators.rows import micro_pack, shard
from rlflow import Record, Worker
from rlflow.data.rowplan import pack_index, plan_rows
from rlflow.data.tensors import is_pad


@dataclass
class At:
    rank: int


def rank_of(rank: int, dp: int) -> Worker:
    worker = Worker("actor", dp=dp)
    worker.site = At(rank)  # type: ignore[attr-defined]
    return worker


def rows(mask: list[list[bool]], pads: list[bool]) -> TrainRows:
    """Rows of three tokens; what is in no field of a shape is not asked for."""
    masks = torch.tensor(mask)
    count = len(mask)
    made: TrainRows = object.__new__(TrainRows)
    values = {
        "input_ids": torch.ones(count, 3, dtype=torch.int64), "position_ids": torch.arange(3).expand(count, 3), "response_mask": masks,
        "is_pad": torch.tensor(pads), "old_log_probs": torch.zeros(count, 2), "advantages": torch.zeros(count, 2),
        "uid": torch.arange(count),
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def cut(all_rows: Record, dp: int) -> list[list[Record]]:
    """[rank] -> the micro-batches of its one mini-batch."""
    return [list(micro_pack(shard(all_rows, on=rank_of(rank, dp)), max_tokens=3).parts[0]) for rank in range(dp)]


# --- D1: one number of micro-batches
def test_D1_ranks_with_100_100_and_300_300_tokens_run_equally_many_micro_batches_of_256() -> None:
    """A row is never cut: rank 1 needs two of them, each over the budget and named, and rank 0, whose rows would fit in one, runs two."""
    packed = pack_index([[np.array([100, 100])], [np.array([300, 300])]], max_tokens=256)
    assert [len(rank[0]) for rank in packed] == [2, 2]


# --- D13: a masked row is a row
def test_D13_a_fully_masked_row_is_told_from_a_pad_row_by_a_flag() -> None:
    masked = rows([[False, False], [True, True]], pads=[False, False])
    assert is_pad(vars(masked)).tolist() == [False, False]
    assert [[micro.is_pad.tolist() for micro in rank] for rank in cut(masked, 2)] == [[[False]], [[False]]]  # type: ignore[attr-defined]


def test_D13_a_plan_gives_pads_no_place_of_a_masked_row() -> None:
    """Three rows on two ranks: one pad fills up, and every row that is there is in the plan once, masked or not."""
    plan = plan_rows(np.array([3, 3, 3]), np.arange(3), multiple=2, pieces=2, dp=2, max_tokens=3)
    assert sorted(i for rank in range(2) for i in plan.rows_of(rank).tolist()) == [-1, 0, 1, 2]


# --- D18: the same modules on all ranks
def test_D18_micro_batch_i_has_the_same_fields_on_every_rank() -> None:
    """Which modules run is decided by the fields of a record, which are those of the graph: rows have no fields of their own."""
    ranks = cut(rows([[True, True], [False, False], [True, False], [False, True]], pads=[False] * 4), 2)
    fields = [[sorted(vars(micro)) for micro in rank] for rank in ranks]
    assert fields[0] == fields[1]
    assert len(fields[0]) == 2


# --- Q15: nobody stays away from a collective
def test_Q15_a_rank_whose_rows_are_all_masked_runs_as_many_micro_batches_as_the_others() -> None:
    ranks = cut(rows([[True, True], [True, True], [False, False], [False, False]], pads=[False] * 4), 2)
    assert [len(rank) for rank in ranks] == [2, 2]


def test_Q15_a_rank_that_got_nothing_but_pads_runs_them() -> None:
    plan = plan_rows(np.array([3]), np.array([7]), multiple=2, pieces=2, dp=2, max_tokens=3)
    assert [[len(mini) for mini in plan.micros(rank)] for rank in range(2)] == [[1], [1]]
    assert sorted(plan.rows_of(rank).tolist() for rank in range(2)) == [[-1], [0]]
