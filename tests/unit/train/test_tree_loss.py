"""From played trees to a loss: flatten → reward a leaf → baseline over trajectories → weights of rows → the engine's mean.

The old log-probs are those of the forward, so every ratio is 1 and a term is minus its advantage: the losses are worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from train_cases import Objective

from operators.advantage import grpo, rloo
from operators.flatten import Turn, flatten
from operators.loss import ppo_clip
from operators.records import EpisodeSample
from operators.reward import episode_scores
from operators.samples import Played, episodes_of
from rlflow.engines.train.torch import TorchEngine

PROMPT = Turn(tokens=[3, 4], own=False)


def own(tokens: list[int], parent: int) -> Turn:
    return Turn(tokens=tokens, own=True, log_probs=[-1.0] * len(tokens), versions=[0] * len(tokens), parent=parent)


def given(parent: int) -> Turn:
    return Turn(tokens=[5], own=False, parent=parent)


def played(turns: Sequence[Turn], rewards: Sequence[float]) -> list[Played]:
    return [Played(row=row, text="", reward=reward) for row, reward in zip(flatten(turns), rewards, strict=True)]


CHAIN = [PROMPT, own([7, 8], 0)]
FORKED = [PROMPT, own([7], 0), given(1), own([8, 9], 2), own([10], 2), own([11, 12, 13], 2)]  # 3 leaves: 1 + 2, 1, 3 trained tokens
SILENT = [PROMPT, own([7], 0), given(1), given(1)]  # 2 leaves, the second trains nothing


def sample(*groups: Sequence[list[Played]]) -> EpisodeSample:
    uid = [u for u, group in enumerate(groups) for _ in group]
    number = [t for group in groups for t in range(len(group))]
    prompts: Any = SimpleNamespace(uid=torch.tensor(uid), traj_uid=torch.tensor(number), answer=[""] * len(uid))
    return episodes_of([leaves for group in groups for leaves in group], prompts, version=0)


def advantages(rows: EpisodeSample, estimator: Any = grpo, **options: Any) -> torch.Tensor:
    scores = episode_scores(rows.episode_reward, rows.response_mask)
    made = estimator(scores.token_level_scores, rows.response_mask, rows.uid, traj_uid=rows.traj_uid, **options)
    found: torch.Tensor = made.advantages
    return found


def loss_of(path: Path, rows: EpisodeSample, advantage: torch.Tensor, by: Any, aggregate: Any = "token-mean") -> float:
    record = SimpleNamespace(
        input_ids=rows.input_ids, position_ids=rows.position_ids, response_mask=rows.response_mask, is_pad=rows.is_pad,
        uid=rows.uid, traj_uid=rows.traj_uid, advantages=advantage,
    )  # fmt: skip
    return TorchEngine(path).train(Objective((ppo_clip(aggregate=aggregate, row_weight=by),), ((record,),)))["loss"]


def of_rows(advantage: torch.Tensor, rows: EpisodeSample) -> list[float | None]:
    """The one advantage of each row; None where nothing is trained."""
    return [float(a[m][0]) if m.any() else None for a, m in zip(advantage, rows.response_mask, strict=True)]


# uid 0: a tree with leaves 1, 0, 0 (worth 1/3 together) and a chain with 1.  uid 1: two chains with 1 and 0.
# Without σ: μ is 2/3 in group 0, so 1/3, -2/3, -2/3 and 1/3; μ is 1/2 in group 1, so 1/2 and -1/2.
def groups_of_different_leaf_counts() -> EpisodeSample:
    return sample([played(FORKED, (1.0, 0.0, 0.0)), played(CHAIN, (1.0,))], [played(CHAIN, (1.0,)), played(CHAIN, (0.0,))])


def test_a_baseline_is_over_trajectories_however_many_leaves_they_have() -> None:
    rows = groups_of_different_leaf_counts()
    assert (rows.uid.tolist(), rows.traj_uid.tolist(), rows.leaf.tolist()) == ([0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 1], [0, 1, 2, 0, 0, 0])
    assert of_rows(advantages(rows, scale_by_std=False), rows) == pytest.approx([1 / 3, -2 / 3, -2 / 3, 1 / 3, 1 / 2, -1 / 2])
    # rloo: others' mean is 1 for the tree's leaves, 1/3 for the chain
    assert of_rows(advantages(rows, rloo), rows) == pytest.approx([0.0, -1.0, -1.0, 2 / 3, 1.0, -1.0])


@pytest.mark.parametrize(
    ("by", "token_mean", "row_mean"),
    [
        # trained tokens 3 1 3 2 2 2: Σ A = 3/3 - 2/3 - 6/3 + 2/3 + 2/2 - 2/2 = -1
        ("row", 1 / 13, 1 / 6),
        # weights 1/3 1/3 1/3 1 1 1: Σ = (1 - 2/3 - 2) / 3 + 2/3 + 1 - 1 = 1/9; tokens 7/3 + 6 = 25/3; 4 trajectories
        ("trajectory", -(1 / 9) / (25 / 3), -(1 / 9) / 4),
        # all halved: Σ = 1/18, tokens 25/6; 2 groups
        ("group", -(1 / 18) / (25 / 6), -(1 / 18) / 2),
    ],
)
def test_the_loss_of_groups_with_different_leaf_counts(policy_path: Path, by: str, token_mean: float, row_mean: float) -> None:
    rows = groups_of_different_leaf_counts()
    advantage = advantages(rows, scale_by_std=False)
    assert loss_of(policy_path, rows, advantage, by) == pytest.approx(token_mean, rel=1e-5)
    assert loss_of(policy_path, rows, advantage, by, "seq-mean-token-sum") == pytest.approx(row_mean, rel=1e-5)


def test_a_leaf_with_nothing_trained_is_in_no_baseline_and_no_share(policy_path: Path) -> None:
    """Its reward of 5 has no place. The scores of the group are 1 and 0: advantages 1/2 and -1/2, on 1 and 2 tokens."""
    rows = sample([played(SILENT, (1.0, 5.0)), played(CHAIN, (0.0,))])
    advantage = advantages(rows, scale_by_std=False)
    assert of_rows(advantage, rows) == pytest.approx([0.5, None, -0.5])
    for by in ("row", "trajectory"):
        assert loss_of(policy_path, rows, advantage, by) == pytest.approx((-0.5 + 1.0) / 3, rel=1e-5)
        assert loss_of(policy_path, rows, advantage, by, "seq-mean-token-sum") == pytest.approx((-0.5 + 1.0) / 2, rel=1e-5)


@pytest.mark.parametrize("by", ["row", "trajectory", "group"])
def test_without_forks_and_with_groups_of_one_size_all_weights_are_one_loss(policy_path: Path, by: str) -> None:
    rows = sample([played(CHAIN, (1.0,)), played(CHAIN, (0.0,))], [played(CHAIN, (0.0,)), played(CHAIN, (1.0,))])
    advantage = advantages(rows, scale_by_std=False) * torch.tensor([1.0, 3.0, 1.0, 1.0])[:, None]
    assert loss_of(policy_path, rows, advantage, by) == pytest.approx(-(0.5 - 1.5 - 0.5 + 0.5) / 4, rel=1e-5)


def test_a_group_of_one_trajectory_has_no_baseline_with_leaves_too(policy_path: Path) -> None:
    for tree, rewards in ((FORKED, (1.0, 0.0, 0.5)), (CHAIN, (1.0,))):
        rows = sample([played(tree, rewards)])
        advantage = advantages(rows)
        assert not advantage.any()
        assert loss_of(policy_path, rows, advantage, "trajectory") == 0.0


@pytest.mark.parametrize("by", ["row", "trajectory", "group"])
def test_one_row_alone(policy_path: Path, by: str) -> None:
    rows = sample([played(CHAIN, (1.0,))])
    assert loss_of(policy_path, rows, torch.full(rows.response_mask.shape, 2.0), by) == pytest.approx(-2.0)
