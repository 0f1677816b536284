"""Rows of right-padded tensors: what Block does, on [B, ...] tensors and lists of text. Row operators called outside a run use it.

fields   {"input_ids": Tensor [B, S], "response_mask": Tensor [B, R], "uid": Tensor [B], "answer": list of B texts}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rlflow.errors import DataError

from .batch import OWN_GROUP, PAD_FLAG, PAD_TOKENS
from .dtypes import Array

if TYPE_CHECKING:
    from torch import Tensor

    Fields: TypeAlias = Mapping[str, Tensor | list[str]]


def rows_of(fields: Fields) -> int:
    """B. Raises DataError when the fields differ in it."""
    counts = {name: len(value) for name, value in fields.items()}
    if len(set(counts.values())) != 1:
        raise DataError(f"the fields have different numbers of rows: {counts}")
    return next(iter(counts.values()))


def take(fields: Fields, index: Array) -> dict[str, Tensor | list[str]]:
    """Rows by index; -1 - i makes pad row i, by the rule of Block.take (its length shows only in the plan: its tensors are all zero)."""
    return {name: _take(name, value, index) for name, value in fields.items()}


def _take(name: str, value: Tensor | list[str], index: Array) -> Tensor | list[str]:
    import torch

    if isinstance(value, list):
        return [value[i] if i >= 0 else "" for i in index.tolist()]
    where = torch.as_tensor(index, device=value.device)
    out, pads = value[where.clamp(min=0)], where < 0
    if bool(pads.any()):
        out[pads] = 1 if name == PAD_FLAG else 0
        if name in OWN_GROUP:
            out[pads] = where[pads] + value.min().clamp(max=0)
    return out


def is_pad(fields: Fields) -> Array:
    """bool[B]; all False where the fields do not say."""
    return _numbers(fields, PAD_FLAG, np.zeros(rows_of(fields), np.bool_))


def groups(fields: Fields) -> Array:
    """int64[B]: the uid; without one every row is a group."""
    return _numbers(fields, "uid", np.arange(rows_of(fields)))


def _numbers(fields: Fields, name: str, default: Array) -> Array:
    value = fields.get(name)
    return default if value is None or isinstance(value, list) else np.asarray(value.cpu().numpy())


def lengths(fields: Fields) -> Array:
    """int64[B]: true tokens a row, 2 of a pad row.

    The first of these that is there shows them: attention_mask, position_ids (0, 1, ..., then 0), the last response token.
    Raises DataError when none of them is there.
    """
    for name, count in (("attention_mask", _from_mask), ("position_ids", _from_positions), ("response_mask", _from_responses)):
        value = fields.get(name)
        if value is not None and not isinstance(value, list):
            tokens = np.asarray(count(value).cpu().numpy(), np.int64) if value.numel() else np.zeros(len(value), np.int64)
            return np.where(is_pad(fields), PAD_TOKENS, tokens)
    raise DataError(f"no token counts: attention_mask, position_ids or response_mask show them, there are {', '.join(fields)}")


def _from_mask(attention_mask: Tensor) -> Tensor:
    return attention_mask.sum(-1)


def _from_positions(position_ids: Tensor) -> Tensor:
    return position_ids.flatten(1).amax(-1) + 1


def _from_responses(response_mask: Tensor) -> Tensor:
    import torch

    width = response_mask.shape[-1]
    return (response_mask * torch.arange(2, 2 + width, device=response_mask.device)).amax(-1)
