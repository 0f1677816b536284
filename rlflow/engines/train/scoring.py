"""Rows → micro-batches of at most `max_tokens` tokens, pads included → one number a next-token position, back in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rlflow.errors import EngineError

from .packed import PackedRows

__all__ = ["ScoringRows", "score", "token_budget"]


class ScoringRows(NamedTuple):
    """A micro-batch to score, trimmed to its longest row."""

    input_ids: Tensor  # i64[b, S]
    position_ids: Tensor  # i64[b, S]
    response_mask: Tensor  # flag[b, R]: where the row has a next token
    is_pad: Tensor  # flag[b]: all False


def token_budget(lengths: list[int], max_tokens: int, *, packed: bool = False) -> Iterator[list[int]]:
    """Row indices, longest first, in runs of at most `max_tokens` (a longer row goes alone): `rows * longest`, or packed the sum."""
    run: list[int] = []
    used = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if run and (used + lengths[i] if packed else (len(run) + 1) * lengths[run[0]]) > max_tokens:
            yield run
            run, used = [], 0
        run.append(i)
        used += lengths[i]
    if run:
        yield run


@torch.no_grad()
def score(
    forward: Callable[[ScoringRows | PackedRows], Tensor],
    input_ids: Tensor,
    position_ids: Tensor,
    attention_mask: Tensor,
    *,
    max_tokens: int,
    what: str,
    packed: bool = False,
) -> Tensor:
    """f32[B, R] of `forward` (rows → a number a token), zero where the row has no next token.

    attention_mask: flag[B, S], True on a row's tokens, on the left. Raises EngineError if it has a hole or a result is not finite.
    """
    lengths = _lengths(attention_mask)
    out = torch.zeros(input_ids.shape[0], max(input_ids.shape[1] - 1, 0), dtype=torch.float32, device=input_ids.device)
    for rows in token_budget(lengths, max_tokens, packed=packed):
        width = lengths[rows[0]]
        if width < 2:  # no token has a predecessor
            continue
        valid = attention_mask[rows, 1:width].bool()
        batch = ScoringRows(input_ids[rows, :width], position_ids[rows, :width], valid, valid.new_zeros(len(rows)))
        result = _packed(forward, batch) if packed else forward(batch).float()
        result = result.where(valid, result.new_zeros(()))
        _refuse_non_finite(result, rows, what)
        out[rows, : width - 1] = result
    return out


def _packed(forward: Callable[[ScoringRows | PackedRows], Tensor], batch: ScoringRows) -> Tensor:
    rows = PackedRows(batch)
    return rows.unpacked(forward(rows).float())


def _lengths(attention_mask: Tensor) -> list[int]:
    lengths = attention_mask.bool().sum(-1)
    steps = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    holes = ((steps < lengths[:, None]) != attention_mask.bool()).any(-1)
    if bool(holes.any()):
        row = int(holes.nonzero()[0])
        raise EngineError(f"attention_mask of row {row} is not True on the left and False on the right: rows are right-padded")
    return [int(n) for n in lengths.tolist()]


def _refuse_non_finite(result: Tensor, rows: list[int], what: str) -> None:
    bad = (~result.isfinite()).any(-1)
    if bool(bad.any()):
        named = ", ".join(str(i) for i, b in zip(rows, bad.tolist(), strict=True) if b)
        raise EngineError(f"{what} of row(s) {named} are not finite: the weights or the logits hold NaN or infinity")
