"""Rows and objectives for the tests of the train engine: right-padded records with real tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

VOCABULARY = 16


@dataclass(frozen=True)
class Rows:
    """What a micro-batch carries. [b, S] and [b, R]."""

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    is_pad: Tensor
    uid: Tensor
    traj_uid: Tensor
    old_log_probs: Tensor
    ref_log_probs: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor

    def take(self, rows: Sequence[int], width: int | None = None) -> Rows:
        """These rows, cut or padded on the right to `width` tokens (default: the longest row)."""
        chosen = {name: value[list(rows)] for name, value in self.__dict__.items()}
        width = width or int(chosen["attention_mask"].sum(-1).max())
        return Rows(**{name: fit(value, width - (name not in TOKENS)) if value.ndim == 2 else value for name, value in chosen.items()})


TOKENS = ("input_ids", "position_ids", "attention_mask")


def fit(value: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(value, (0, width - value.shape[1])) if value.shape[1] < width else value[:, :width]


def make_rows(lengths: Sequence[int], *, prompt: int = 2, seed: int = 0, pads: int = 0, dtype: torch.dtype = torch.float32) -> Rows:
    """Random rows of these lengths, `prompt` tokens untrained, a gap in the mask of each third row, then `pads` padding rows."""
    draw = torch.Generator().manual_seed(seed)
    count, width = len(lengths) + pads, max(lengths)
    steps = torch.arange(width)
    attention = steps < torch.tensor([*lengths, *[2] * pads])[:, None]
    is_pad = torch.tensor([False] * len(lengths) + [True] * pads)
    mask = (attention & (steps >= prompt) & ~is_pad[:, None])[:, 1:].clone()
    mask[::3, prompt + 1 : prompt + 2] = False
    numbers = torch.randn(5, count, width - 1, generator=draw, dtype=torch.float64).to(dtype)
    log_probs = -2.7 + 0.3 * numbers[:2]
    ids = torch.where(attention & ~is_pad[:, None], torch.randint(3, VOCABULARY, (count, width), generator=draw), 0)
    own = torch.arange(count)
    return Rows(
        input_ids=ids, position_ids=steps.expand(count, width) * attention, attention_mask=attention, response_mask=mask, is_pad=is_pad,
        uid=torch.where(is_pad, -1 - own, own // 2), traj_uid=torch.where(is_pad, -1 - own, own % 2),
        old_log_probs=log_probs[0], ref_log_probs=log_probs[1], advantages=numbers[2], values=0.1 * numbers[3], returns=numbers[4],
    )  # fmt: skip


@dataclass(frozen=True)
class Objective:
    losses: tuple[Any, ...]
    parts: tuple[tuple[Any, ...], ...]
    counts: tuple[dict[str, int], ...] = ()


def parameters(engine: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.named_tensors()}


def relative_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """‖a - b‖ / ‖b‖ over all tensors."""
    assert a.keys() == b.keys()
    difference = sum(float((a[k].double() - b[k].double()).square().sum()) for k in a)
    return float((difference / sum(float(b[k].double().square().sum()) for k in b)) ** 0.5)
