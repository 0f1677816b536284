"""How leaves share the weight of their trajectory. Terms are given, so the expected losses are worked out by hand.

    uid 0   trajectory 0   rows a (terms 1 2 3), b (4)     trajectory 1   row c (6 6)
    uid 1   trajectory 0   row d (8)                        e: a row without a trained token

    weight        a    b    c    d        tokens weighed              Σ weight · terms
    row           1    1    1    1        3 + 1 + 2 + 1 = 7           6 + 4 + 12 + 8 = 30
    trajectory   1/2  1/2   1    1        1.5 + 0.5 + 2 + 1 = 5       3 + 2 + 12 + 8 = 25
    group        1/4  1/4  1/2   1        .75 + .25 + 1 + 1 = 3       1.5 + 1 + 6 + 8 = 16.5
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_loss_scale import Given, rows_of
from test_split_invariance import LIMIT, cuts, gradient, rows_in
from torch import Tensor
from train_cases import Objective, Rows, relative_difference

from operators.loss import entropy_bonus, kl_penalty, ppo_clip
from rlflow.engines.train.denominators import Counts, counted, whole_counts
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.view import LossRows
from rlflow.errors import EngineError

A, B, C, D, E, PAD = range(6)


@dataclass(frozen=True)
class Weighed(Given):
    row_weight: Any = "trajectory"


@dataclass(frozen=True)
class SumOfRows(Weighed):
    """A term a row: [b]."""

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        return super().__call__(forward, rows).sum(-1)


def tree() -> Rows:
    rows = rows_of([1.0, 2.0, 3.0], [4.0], [6.0, 6.0], [8.0], [], pads=1)
    return replace(rows, uid=torch.tensor([0, 0, 0, 1, 1, -6]), traj_uid=torch.tensor([0, 0, 1, 0, 0, -6]))


def loss_of(path: Path, loss: Any, *parts: tuple[Rows, ...]) -> float:
    return TorchEngine(path).train(Objective((loss,), parts or ((tree(),),)))["loss"]


@pytest.mark.parametrize(
    ("by", "of_tokens", "of_rows", "of_ten"),
    [("row", 30 / 7, 30 / 4, 3.0), ("trajectory", 25 / 5, 25 / 3, 2.5), ("group", 16.5 / 3, 16.5 / 2, 1.65)],
)
def test_the_weighed_mean(policy_path: Path, by: str, of_tokens: float, of_rows: float, of_ten: float) -> None:
    assert loss_of(policy_path, Weighed("tokens", row_weight=by)) == pytest.approx(of_tokens)
    assert loss_of(policy_path, Weighed("rows", row_weight=by)) == pytest.approx(of_rows)
    assert loss_of(policy_path, SumOfRows("rows", row_weight=by)) == pytest.approx(of_rows)
    assert loss_of(policy_path, Weighed(10, row_weight=by)) == pytest.approx(of_ten)


def test_the_other_counts_stay_what_they_count(policy_path: Path) -> None:
    assert loss_of(policy_path, Weighed("trajectories", row_weight="trajectory")) == pytest.approx(25 / 3)
    assert loss_of(policy_path, Weighed("groups", row_weight="trajectory")) == pytest.approx(25 / 2)


@pytest.mark.parametrize("by", ["row", "trajectory", "group"])
def test_without_a_fork_trajectories_are_rows(policy_path: Path, by: str) -> None:
    rows = tree().take([A, C])
    rows = replace(rows, uid=torch.tensor([0, 1]))
    assert loss_of(policy_path, Weighed("tokens", row_weight=by), ((rows,))) == pytest.approx(18 / 5)


def test_one_row_alone(policy_path: Path) -> None:
    for by in ("row", "trajectory", "group"):
        assert loss_of(policy_path, Weighed("rows", row_weight=by), (tree().take([C]),)) == pytest.approx(12.0)


def test_a_leaf_with_nothing_trained_takes_no_share(policy_path: Path) -> None:
    """Rows d and e are one trajectory: d weighs 1 all the same, in its mini-batch of its own too."""
    assert loss_of(policy_path, Weighed("tokens"), (tree().take([D, E]),)) == pytest.approx(8.0)
    assert loss_of(policy_path, Weighed("rows", row_weight="group"), (tree().take([D, E]),)) == pytest.approx(8.0)


def test_nothing_trained_at_all_is_no_step(policy_path: Path) -> None:
    metrics = TorchEngine(policy_path).train(Objective((Weighed("tokens"),), ((tree().take([E, PAD]),),)))
    assert (metrics["loss"], metrics["steps"]) == (0.0, 0.0)


@pytest.mark.parametrize("by", ["trajectory", "group"])
def test_leaves_in_several_micro_batches_share_as_in_one(policy_path: Path, by: str) -> None:
    rows = tree()
    whole = loss_of(policy_path, Weighed("tokens", row_weight=by))
    assert loss_of(policy_path, Weighed("tokens", row_weight=by), (rows.take([A, C]), rows.take([PAD, B]), rows.take([E, D]))) == whole


def test_leaves_on_several_ranks_share_as_on_one() -> None:
    loss = Weighed("tokens", row_weight="group")
    parts = [((tree().take([A, D, PAD]),),), ((tree().take([B, C, E]),),)]
    words: list[Any] = []

    def told(part: Any) -> Any:
        def exchange(word: Any, what: str) -> Any:
            words.append(word)
            return [word]

        return whole_counts(Objective((loss,), part), (loss,), SimpleNamespace(exchange=exchange))  # type: ignore[arg-type]

    for part in parts:
        told(part)
    both: Counts = whole_counts(Objective((loss,), parts[0]), (loss,), SimpleNamespace(exchange=lambda word, what: words))[0]  # type: ignore[arg-type]
    assert counted(loss, both) == pytest.approx(3.0)
    assert both.shares is not None
    assert both.shares.of_rows("group", LossRows(tree(), None, {})).tolist() == [0.25, 0.25, 0.5, 1.0, 0.0, 0.0]
    assert both.shares.of_rows("trajectory", LossRows(tree(), None, {})).tolist() == [0.5, 0.5, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("by", ["trajectory", "group"])
def test_the_gradient_does_not_depend_on_the_cut(policy_path: Path, by: Any, dtype: str) -> None:
    uid, traj_uid = [0, 0, 0, 0, 1, 1, 1, 2, -1, -2], [0, 0, 1, 1, 0, 0, 0, 0, -1, -2]
    forked = replace(rows_in(dtype), uid=torch.tensor(uid), traj_uid=torch.tensor(traj_uid))
    losses = (ppo_clip(row_weight=by), kl_penalty(0.1, row_weight=by), entropy_bonus(0.01))
    ways = cuts(forked)
    full = gradient(policy_path, "policy", losses, ways.pop("one micro-batch"), dtype)
    plain = gradient(policy_path, "policy", (ppo_clip(), *losses[1:]), cuts(forked)["one micro-batch"], dtype)
    assert relative_difference(plain, full) > 1e-3
    for way, cut in ways.items():
        difference = relative_difference(gradient(policy_path, "policy", losses, cut, dtype), full)
        assert difference <= LIMIT[dtype], f"{way}: {difference}"


def test_a_word_that_is_no_row_weight_is_refused(policy_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Weighed\.row_weight is 'leaf'; use row, trajectory, group"):
        loss_of(policy_path, Weighed(row_weight="leaf"))


def test_rows_that_cannot_be_weighed_are_told_what_they_lack(policy_path: Path) -> None:
    bare = SimpleNamespace(**{k: v for k, v in tree().__dict__.items() if k != "traj_uid"})
    with pytest.raises(EngineError, match="a loss weighs rows by their trajectory, but the rows have no traj_uid"):
        loss_of(policy_path, Weighed(), (bare,))  # type: ignore[arg-type]
