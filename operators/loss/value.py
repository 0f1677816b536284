"""The loss of the critic."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlflow import Aggregated, Tensor

from ..options import within
from ..records import CriticForward, ValueRows
from .terms import inside

__all__ = ["value_clip"]


class value_clip(Aggregated[CriticForward, ValueRows]):
    """0.5 · max((v - G)², (clip(v, v_old ± clip) - G)²) a token; G: returns, v_old: `values`, those of the critic before the update.

    Schulman et al.'s PPO implementation (OpenAI baselines, ppo2); Engstrom et al. 2020 (arXiv:2005.12729), section 3.

        v = 1, v_old = 0, G = 0, clip = 0.5: 0.5 · max(1, 0.25) = 0.5      G = 1: 0.5 · max(0, 0.25) = 0.125
    """

    clip: float = 0.5

    def __post_init__(self) -> None:
        within("value_clip", 0, math.inf, clip=self.clip)

    @property
    def from_forward(self) -> Mapping[str, str]:
        return {"values": "values"}

    def __call__(self, forward: CriticForward, rows: ValueRows) -> Tensor:
        plain, clipped = self._squared_errors(forward, rows)
        return self.aggregated(0.5 * plain.maximum(clipped), rows)

    def metrics(self, forward: CriticForward, rows: ValueRows) -> dict[str, Tensor]:
        """clip_fraction: tokens whose clipped error counts. squared_error: (v - G)². value: v."""
        plain, clipped = (x.detach() for x in self._squared_errors(forward, rows))
        value = inside(forward.values, rows.response_mask).detach()
        return {"clip_fraction": (clipped > plain).to(plain.dtype), "squared_error": plain, "value": value}

    def _squared_errors(self, forward: CriticForward, rows: ValueRows) -> tuple[Tensor, Tensor]:
        new, old, returns = (inside(x, rows.response_mask) for x in (forward.values, rows.values, rows.returns))
        clipped = old + (new - old).clamp(-self.clip, self.clip)
        return (new - returns) ** 2, (clipped - returns) ** 2
