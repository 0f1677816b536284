"""From played trajectories to the rows of `Sample`, and from held-out answers to a mean reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .baselines import blind_baselines
from .flatten import Row
from .records import Prompts, Sample, Trajectories

if TYPE_CHECKING:
    from .reward import RewardFn


@dataclass(frozen=True, kw_only=True)
class Played:
    """One finished trajectory. versions: of the weights that sampled each of its own tokens, in order; text: what was said last."""

    row: Row
    versions: Sequence[int]
    text: str
    answer: str


def sample_of(played: Sequence[Played], prompts: Trajectories, version: int) -> Sample:
    """One row a trajectory, right-padded to the longest: [T, S] and [T, R]. version: published when they were registered."""
    import torch  # not at the top: `rlflow check` reads this file and needs no torch

    def padded(name: str) -> npt.NDArray[Any]:
        return _right_padded([getattr(p.row, name) for p in played])

    rows = len(played)
    mask = padded("response_mask")
    versions = np.full(mask.shape, -1, np.int32)
    versions[mask] = [v for p in played for v in p.versions]
    return Sample(
        input_ids=torch.from_numpy(padded("input_ids")),
        attention_mask=torch.from_numpy(padded("attention_mask")),
        position_ids=torch.from_numpy(padded("position_ids")),
        responses=torch.from_numpy(padded("responses")),
        response_mask=torch.from_numpy(mask),
        rollout_log_probs=torch.from_numpy(padded("rollout_log_probs")),
        token_versions=torch.from_numpy(versions),
        uid=torch.as_tensor(prompts.uid).clone(),
        traj_uid=torch.as_tensor(prompts.traj_uid).clone(),
        leaf=torch.from_numpy(np.zeros(rows, np.int64)),
        version_tag=torch.from_numpy(np.full(rows, version, np.int64)),
        is_pad=torch.from_numpy(np.zeros(rows, np.bool_)),
        response_text=[p.text for p in played],
        answer=[p.answer for p in played],
    )


def _right_padded(rows: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[rows, longest] of their dtype, 0 or False behind each. In numpy: a torch call hands the GIL on to another trajectory."""
    padded = np.zeros((len(rows), max(len(row) for row in rows)), rows[0].dtype)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


def held_out(texts: Sequence[str], prompts: Prompts, reward: RewardFn) -> dict[str, float]:
    """Mean reward of one answer a prompt; scored as one-token responses, since only the scalar is asked for."""
    import torch

    scores = reward(list(texts), list(prompts.answer), torch.ones(len(texts), 1, dtype=torch.bool))
    return {"reward": float(scores.is_correct.mean()), "prompts": float(len(texts))}


def baselines_of(prompts: Prompts) -> dict[str, float]:
    """What answers score that ignore the question, or its operands."""
    found: Any = blind_baselines(prompts.answer, prompts.template)
    return {"best_constant": found.best_constant, "best_blind": found.best_blind}
