"""Rows end to end against the same rows right-padded: log-probs, values, gradients, metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_split_invariance import cuts, rows_in
from train_cases import Objective, make_rows, parameters, relative_difference

from operators.loss import entropy_bonus, gspo, kl_penalty, ppo_clip, value_clip
from rlflow.engines.train.context import ContextRows, share_of
from rlflow.engines.train.packed import PackedRows
from rlflow.engines.train.scoring import token_budget
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.view import LossRows
from rlflow.errors import EngineError

LOSSES = (ppo_clip(0.2, 0.28), kl_penalty(0.1), entropy_bonus(0.01), gspo(row_weight="trajectory"))


def small() -> PackedRows:
    """Row 0 is trained at 1 and 2, row 1 at 0, row 2 (padding) nowhere."""
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    ids = torch.arange(15).reshape(3, 5)
    counting = torch.arange(5).expand(3, 5) * (ids < 10)
    return PackedRows(SimpleNamespace(
        response_mask=mask, is_pad=torch.tensor([False, False, True]), input_ids=ids, position_ids=counting,
        advantages=torch.arange(12.0).reshape(3, 4), uid=torch.tensor([7, 8, -1]),
    ))  # fmt: skip


def test_each_row_is_run_up_to_its_last_trained_token() -> None:
    packed = small()
    assert packed.input_ids.tolist() == [[0, 1, 2, 3, 5, 6, 10, 11]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
    assert packed.advantages.tolist() == [[0.0, 1.0, 2.0, 4.0, 8.0]]
    assert packed.response_mask.tolist() == [[False, True, True, True, False]]
    assert packed.uid.tolist() == [7, 8, -1]
    assert packed.unpacked(packed.advantages).tolist() == [[0, 1, 2, 0], [4, 0, 0, 0], [8, 0, 0, 0]]


def test_the_row_view_goes_by_segment() -> None:
    packed = small()
    rows = LossRows(packed, None, {}, packed.layout)
    assert rows.row_sum(packed.advantages).tolist() == [3.0, 4.0, 0.0]
    assert rows.row_mean(packed.advantages).tolist() == [1.5, 4.0, 0.0]
    assert rows.row_count().tolist() == [2, 1, 0]
    assert rows.per_token(rows.uid).tolist() == [[7, 7, 7, 8, -1]]
    assert rows.positions().tolist() == [[0, 1, 2, 0, 0]]
    assert rows.place(0, 3) == (1, 0)


def test_a_cp_rank_has_the_first_and_the_last_chunk_of_each_row() -> None:
    positions = torch.arange(8)
    assert share_of(positions, torch.tensor(8), rank=0, size=2).tolist() == [True] * 2 + [False] * 4 + [True] * 2
    assert share_of(positions, torch.tensor(8), rank=1, size=2).tolist() == [False] * 2 + [True] * 4 + [False] * 2
    packed = small()
    slices = [ContextRows(packed, packed.layout, rank=rank, size=2, reduce=lambda x: x) for rank in (0, 1)]
    assert sorted(int(i) for one in slices for i in one.columns) == [0, 1, 2, 3, 4]
    assert [one.advantages.tolist() for one in slices] == [[[0.0, 4.0, 8.0]], [[1.0, 2.0]]]
    assert slices[1].layout.position is not None
    assert slices[1].layout.position.tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("max_tokens", [1, 20, 16_384])
def test_scores_are_those_of_padded_rows(policy_path: Path, critic_path: Path, dtype: Any, max_tokens: int) -> None:
    rows = make_rows((6, 9, 4, 8, 1, 2), prompt=1)
    given = (rows.input_ids, rows.position_ids, rows.attention_mask)
    for path, kind in ((policy_path, "policy"), (critic_path, "critic")):
        both = [TorchEngine(path, kind=kind, dtype=dtype, max_tokens=max_tokens, packed=packed) for packed in (True, False)]  # type: ignore[arg-type]
        mine, padded = ((e.log_probs if kind == "policy" else e.values)(*given) for e in both)
        torch.testing.assert_close(mine, padded, rtol=1e-6, atol=1e-6)
        assert mine.abs().sum() > 1


@pytest.mark.parametrize("way", ["one micro-batch", "uneven", "other order", "wider padding", "padding rows"])
def test_gradients_and_metrics_are_those_of_padded_rows(policy_path: Path, way: str) -> None:
    rows = rows_in("float64")
    engines = [TorchEngine(policy_path, dtype="float64", packed=packed, lr=1e-2) for packed in (True, False)]
    cut = cuts(rows)
    found = [engine.train(Objective(LOSSES, (cut[name],))) for engine, name in zip(engines, (way, "one micro-batch"), strict=True)]
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert relative_difference(parameters(engines[0]), parameters(engines[1])) < 1e-9


def test_what_lies_behind_the_last_trained_token_changes_nothing(policy_path: Path) -> None:
    rows = make_rows((6, 9, 4))
    last = rows.response_mask * torch.arange(1, 9)
    behind = torch.arange(9) > last.amax(-1, keepdim=True)
    other = replace(rows, input_ids=rows.input_ids.where(~behind, 5))
    ends = []
    for one in (rows, other):
        engine = TorchEngine(policy_path, packed=True)
        engine.train(Objective((ppo_clip(),), ((one,),)))
        ends.append(parameters(engine))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_positions_that_do_not_count_are_refused(policy_path: Path) -> None:
    rows = make_rows((6, 9, 4))
    jumping = replace(rows, position_ids=rows.position_ids * 2)
    with pytest.raises(EngineError, match="micro-batch 0: position_ids of row 0 do not count 0, 1, 2"):
        TorchEngine(policy_path, packed=True).train(Objective((ppo_clip(),), ((jumping,),)))


def test_a_term_outside_the_mask_names_its_row_and_position(policy_path: Path) -> None:
    class Unmasked(ppo_clip):
        def __call__(self, forward: Any, rows: Any) -> Any:
            return forward.log_probs

    rows = make_rows((6, 9, 4), prompt=3)
    at = r"Unmasked is .* at position 0 of row 0 \(uid 0, traj_uid 0\), outside response_mask \(so in 3 of 3 rows\)"
    with pytest.raises(EngineError, match=at):
        TorchEngine(policy_path, packed=True).train(Objective((Unmasked(),), ((rows,),)))


def test_the_critic_too(critic_path: Path) -> None:
    ends = []
    for packed in (True, False):
        engine = TorchEngine(critic_path, kind="critic", dtype="float64", packed=packed)
        metrics = engine.train(Objective((value_clip(0.2, row_weight="group"),), ((rows_in("float64"),),)))
        ends.append((parameters(engine), metrics))
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-9)
    assert relative_difference(ends[0][0], ends[1][0]) < 1e-9


def test_the_budget_of_packed_rows_is_their_sum() -> None:
    assert list(token_budget([3, 9, 4, 2], 10, packed=True)) == [[1], [2, 0, 3]]
    assert list(token_budget([3, 9, 4, 2], 10)) == [[1], [2, 0], [3]]
