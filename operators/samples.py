"""From played leaves to the rows of `Sample`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rlflow import Tensor

from .flatten import Row
from .records import EpisodeSample, Sample, Trajectories


@dataclass(frozen=True, kw_only=True)
class Played:
    """One leaf of a finished trajectory. text: what was said last; reward: of the environment, from the first turn to this leaf.

    is_truncated: a bound of tokens or context ended its last turn, or one of turns or tokens the episode.
    """

    row: Row
    text: str
    reward: float = 0.0
    is_truncated: bool = False


def sample_of(trajectories: Sequence[Sequence[Played]], prompts: Trajectories, version: int) -> Sample:
    """One row a leaf, the leaves of a trajectory in their order, right-padded to the longest: [B, S] and [B, R].

    trajectories: one a row of `prompts`, each of at least one leaf. version: published when they were registered.
    """
    return Sample(**_columns(trajectories, prompts, version))


def episodes_of(trajectories: Sequence[Sequence[Played]], prompts: Trajectories, version: int) -> EpisodeSample:
    """`sample_of`, and what the environment gave."""
    import torch

    played = [leaf for leaves in trajectories for leaf in leaves]
    return EpisodeSample(
        **_columns(trajectories, prompts, version),
        episode_reward=torch.tensor([leaf.reward for leaf in played], dtype=torch.float32),
        step_rewards=_padded(played, "step_rewards"),
        step_states=_padded(played, "step_states"),
    )


def _columns(trajectories: Sequence[Sequence[Played]], prompts: Trajectories, version: int) -> dict[str, Any]:
    import torch  # not at the top: `rlflow check` reads this file and needs no torch

    played = [leaf for leaves in trajectories for leaf in leaves]
    origin = [row for row, leaves in enumerate(trajectories) for _ in leaves]

    padded = partial(_padded, played)
    return {
        "input_ids": padded("input_ids"),
        "attention_mask": padded("attention_mask"),
        "position_ids": padded("position_ids"),
        "responses": padded("responses"),
        "response_mask": padded("response_mask"),
        "rollout_log_probs": padded("rollout_log_probs"),
        "token_versions": padded("token_versions", -1),
        "uid": torch.as_tensor(prompts.uid)[origin],
        "traj_uid": torch.as_tensor(prompts.traj_uid)[origin],
        "leaf": torch.from_numpy(np.array([leaf.row.leaf for leaf in played], np.int64)),
        "version_tag": torch.from_numpy(np.full(len(played), version, np.int64)),
        "is_pad": torch.from_numpy(np.zeros(len(played), np.bool_)),
        "is_truncated": torch.from_numpy(np.array([leaf.is_truncated for leaf in played], np.bool_)),
        "response_text": [leaf.text for leaf in played],
        "answer": [prompts.answer[row] for row in origin],
    }


def _padded(played: Sequence[Played], name: str, fill: int = 0) -> Tensor:
    """A column of the rows, [B, S] or [B, R]."""
    import torch

    return torch.from_numpy(_right_padded([getattr(leaf.row, name) for leaf in played], fill))


def _right_padded(rows: Sequence[npt.NDArray[Any]], fill: int) -> npt.NDArray[Any]:
    """[rows, longest] of their dtype, `fill` behind each. In numpy: a torch call hands the GIL on to another trajectory."""
    padded = np.full((len(rows), max(len(row) for row in rows)), fill, rows[0].dtype)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded
