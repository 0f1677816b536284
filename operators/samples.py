"""From played trajectories to the rows of `Sample`, and from held-out answers to a mean reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def padded(name: str) -> torch.Tensor:
        return pad_sequence([torch.from_numpy(getattr(p.row, name)) for p in played], batch_first=True)

    rows = len(played)
    mask = padded("response_mask")
    versions = torch.full(mask.shape, -1, dtype=torch.int32)
    versions[mask] = torch.tensor([v for p in played for v in p.versions], dtype=torch.int32)
    return Sample(
        input_ids=padded("input_ids"),
        attention_mask=padded("attention_mask"),
        position_ids=padded("position_ids"),
        responses=padded("responses"),
        response_mask=mask,
        rollout_log_probs=padded("rollout_log_probs"),
        token_versions=versions,
        uid=torch.as_tensor(prompts.uid),
        traj_uid=torch.as_tensor(prompts.traj_uid),
        leaf=torch.zeros(rows, dtype=torch.int64),
        version_tag=torch.full((rows,), version),
        is_pad=torch.zeros(rows, dtype=torch.bool),
        response_text=[p.text for p in played],
        answer=[p.answer for p in played],
    )


def held_out(texts: Sequence[str], prompts: Prompts, reward: RewardFn) -> dict[str, float]:
    """Mean reward of one answer a prompt; scored as one-token responses, since only the scalar is asked for."""
    import torch

    scores = reward(list(texts), list(prompts.answer), torch.ones(len(texts), 1, dtype=torch.bool))
    return {"reward": float(scores.is_correct.mean()), "prompts": float(len(texts))}


def baselines_of(prompts: Prompts) -> dict[str, float]:
    """What answers score that ignore the question, or its operands."""
    found: Any = blind_baselines(prompts.answer, prompts.template)
    return {"best_constant": found.best_constant, "best_blind": found.best_blind}
