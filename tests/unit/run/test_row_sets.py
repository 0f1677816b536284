"""Which rows an operator is handed: numbers composed here, against the operators themselves run on real tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_loop import TrainRows, small

from operators.rows import micro_pack, pad, rebalance, shard
from rlflow.errors import UsageError
from rlflow.language.worker import Site, Worker
from rlflow.modules import make_worker
from rlflow.run.graph import GraphView
from rlflow.run.rows import Rows, RowSets

LENGTHS = [5, 3, 9, 4, 4, 7, 3, 6, 5, 8]
UID = [4, 4, 4, 4, 6, 6, 6, 9, 9, 9]
CASES = pytest.mark.parametrize(("dp", "mini_batches"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])


def row_sets(dp: int, mini_batches: int) -> tuple[RowSets, int, int]:
    """(all row sets, the batch's, that of the micro-batches)."""
    view = GraphView(small(dp=dp, mini_batches=mini_batches))
    workers = {w.id: make_worker(w) for w in view.graph.workers}
    base = view.facts.rows[view.form.outs[0]]
    rows = Rows(np.array(LENGTHS), np.array(UID), np.zeros(len(LENGTHS), np.bool_))
    train = next(node for node in view.batch if node.losses)
    return RowSets(view.facts.rowsets, view.index, workers, base, rows, 0), base, view.facts.rows[train.uses[0].field]


@CASES
def test_every_real_row_is_in_exactly_one_mini_batch(dp: int, mini_batches: int) -> None:
    sets, base, micro = row_sets(dp, mini_batches)
    cuts = sets[micro].cuts
    assert len(cuts) == dp
    assert [len(rank) for rank in cuts] == [mini_batches] * dp
    everything = np.concatenate([part for rank in cuts for mini in rank for part in mini])
    real = sets.down(everything, micro, base)
    assert sorted(real[real >= 0].tolist()) == list(range(10))
    pads = -(-10 // (dp * mini_batches)) * dp * mini_batches - 10
    assert sorted(real[real < 0].tolist()) == [-1 - i for i in reversed(range(pads))]


@CASES
def test_all_ranks_have_equally_many_micro_batches(dp: int, mini_batches: int) -> None:
    sets, _, micro = row_sets(dp, mini_batches)
    for j in range(mini_batches):
        assert len({len(rank[j]) for rank in sets[micro].cuts}) == 1


@CASES
def test_the_numbers_are_the_rows_that_the_operators_make(dp: int, mini_batches: int) -> None:
    sets, base, micro = row_sets(dp, mini_batches)
    ids = [[100 * row + t for t in range(1, n + 1)] for row, n in enumerate(LENGTHS)]
    for rank in range(dp):
        parts = _by_operators(ids, dp, mini_batches, rank)
        for mini, wanted in zip(sets[micro].cuts[rank], parts, strict=True):
            for index, record in zip(mini, wanted, strict=True):
                composed = sets.down(index, micro, base).tolist()
                rows = [ids[i] if i >= 0 else [0, 0] for i in composed]
                width = record.input_ids.shape[1]
                assert record.input_ids.tolist() == [row + [0] * (width - len(row)) for row in rows]
                assert record.is_pad.tolist() == [i < 0 for i in composed]
                assert record.uid.tolist() == [UID[i] if i >= 0 else i for i in composed]


def _by_operators(ids: list[list[int]], dp: int, mini_batches: int, rank: int) -> tuple[tuple[TrainRows, ...], ...]:
    """The same four steps on right-padded tensors."""
    width = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    mask = torch.tensor([[True] * (len(row) - 1) + [False] * (width - len(row)) for row in ids])
    rows = object.__new__(TrainRows)
    given = {"input_ids": tokens, "position_ids": torch.arange(width).expand(10, -1) * (tokens > 0), "response_mask": mask}
    for name, value in (given | {"is_pad": torch.zeros(10, dtype=torch.bool), "uid": torch.tensor(UID)}).items():
        object.__setattr__(rows, name, value)
    on = Worker("actor", dp=dp)
    on.site = Site(name="actor", rank=rank, dp_size=dp, run_dir=None, seed=0, rendezvous="")  # type: ignore[arg-type]
    rows = rebalance(pad(rows, multiple=dp * mini_batches), pieces=dp, mini_batches=mini_batches)
    return micro_pack(shard(rows, on=on, mini_batches=mini_batches), max_tokens=16).parts


def test_pad_rows_are_flagged_and_are_groups_of_their_own() -> None:
    rows = Rows(np.array([3, 5]), np.array([7, 7]), np.array([False, False])).take(np.array([1, -1, -2]), parent=0)
    assert rows.lengths.tolist() == [5, 2, 2]
    assert rows.uid.tolist() == [7, -1, -2]
    assert rows.is_pad.tolist() == [False, True, True]


def test_a_field_of_later_rows_is_not_read_by_an_earlier_operator() -> None:
    sets, base, micro = row_sets(1, 1)
    with pytest.raises(UsageError, match="later rows"):
        sets.down(np.array([0]), base, micro)
