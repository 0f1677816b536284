"""A statistic of the whole mini-batch, for losses that declare one (`Loss.first_pass`, `Loss.statistic`): before any of its terms.

micro-batches ── forward, no gradient ──▶ first_pass ── trained tokens [n] ──▶ gathered over all ranks [N] ──▶ statistic ─┐
terms of micro-batch i ◀── rows.statistics(): numbers as they are, [N] cut to its own tokens in its own layout ───────────┘

Every rank makes it of the same tokens in the same order, so all hold the same one. A mini-batch without a trained token has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rlflow.errors import EngineError

from .distributed import Ranks
from .terms import row_names, trained_tokens
from .view import LossRows

__all__ = ["Measured", "Statistics", "measured", "statistics_of", "word"]

Measured = dict[str, dict[str, Tensor]]  # loss → name → [n], of one micro-batch


@torch.no_grad()
def measured(forward: Any, rows: LossRows, losses: Mapping[str, Any]) -> Measured:
    """What the losses measure of a micro-batch's trained tokens: floats as float64, whole numbers as int64, flags as bool.

    Raises EngineError for another shape than that of `response_mask`, or a value that is not finite, naming the rows.
    """
    found: Measured = {}
    for name, loss in losses.items():
        values: Mapping[str, Tensor] = loss.first_pass(forward, rows)
        if not values:
            raise EngineError(f"{name}.first_pass yields nothing to make a statistic of: name → a number a token")
        found[name] = {key: _tokens(f"{name}.first_pass", key, values[key], rows) for key in sorted(values)}
    return found


def _tokens(title: str, key: str, value: Tensor, rows: LossRows) -> Tensor:
    trained = trained_tokens(rows)
    if value.shape != trained.shape:
        raise EngineError(
            f"{title} yields `{key}` of shape {list(value.shape)}; a number a token is {list(trained.shape)}, as response_mask"
        )
    if bool((stray := ~value.isfinite() & trained).any()):
        raise EngineError(f"{title} yields `{key}` that is not finite in {row_names(rows, rows.local_sum(stray) > 0)}")
    chosen = value.detach()[trained]
    return chosen.double() if chosen.is_floating_point() else chosen if chosen.dtype == torch.bool else chosen.long()


def word(mine: Sequence[Measured]) -> dict[str, Any]:
    """What this rank tells the others before it sends its tokens (JSON): how many there are, and what of them."""
    joined = _joined(mine)
    kinds = {name: {key: str(value.dtype).removeprefix("torch.") for key, value in keys.items()} for name, keys in joined.items()}
    return {"size": sum(map(_size, mine)), "kinds": kinds}


def gathered(mine: Sequence[Measured], told: Sequence[Mapping[str, Any]], ranks: Ranks, what: str) -> Measured:
    """The tokens of all ranks, rank by rank. told: their words. Collective; a rank without a micro-batch joins with nothing.

    Raises EngineError, on every rank, if two ranks measure other things.
    """
    kinds: list[dict[str, dict[str, str]]] = [word["kinds"] for word in told if word["kinds"]]
    if any(kind != kinds[0] for kind in kinds):
        raise EngineError(f"{what}: the ranks measure other things: {'; '.join(map(str, kinds))}")
    local, sizes = _joined(mine), [int(word["size"]) for word in told]
    return {
        name: {key: _gather(local.get(name, {}).get(key), kind, sizes, ranks, what) for key, kind in sorted(keys.items())}
        for name, keys in sorted(kinds[0].items())
    }


def _joined(mine: Sequence[Measured]) -> Measured:
    return {name: {key: torch.cat([one[name][key] for one in mine]) for key in keys} for name, keys in (mine[0] if mine else {}).items()}


def _size(one: Measured) -> int:
    return next(len(value) for values in one.values() for value in values.values())


def _gather(mine: Tensor | None, kind: str, sizes: Sequence[int], ranks: Ranks, what: str) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    mine = torch.empty(0, dtype=dtype) if mine is None else mine
    if len(sizes) == 1:
        return mine
    padded = mine.new_zeros(max(sizes), dtype=torch.uint8 if dtype == torch.bool else dtype)
    padded[: len(mine)] = mine
    return torch.cat([one[:size] for one, size in zip(ranks.gather(padded, what), sizes, strict=True)]).to(dtype)


@torch.no_grad()
def made(losses: Mapping[str, Any], whole: Measured) -> dict[str, dict[str, Tensor]]:
    """The statistic of each loss. Raises EngineError for one that is neither a number nor a number a token."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, loss in losses.items():
        size = len(next(iter(whole[name].values())))
        found[name] = dict(loss.statistic(whole[name]))
        for key, value in found[name].items():
            if value.shape not in ((), (size,)):
                raise EngineError(f"{name}.statistic makes `{key}` of shape {list(value.shape)}; a number is [], one a token [{size}]")
    return found


@dataclass(frozen=True)
class Statistics:
    """Of one mini-batch. found: loss → name → a number [] or one a token [N]. starts: where those of each own micro-batch begin."""

    found: Mapping[str, Mapping[str, Tensor]]
    starts: Sequence[int]

    def of(self, i: int, forward: Any, rows: LossRows) -> dict[str, dict[str, Tensor]]:
        """What the terms of micro-batch i are given: a value a token in the layout of the tokens, floats in the forward's dtype."""
        trained = trained_tokens(rows)
        mine = slice(self.starts[i], self.starts[i] + int(trained.sum()))
        dtype = next((v.dtype for v in vars(forward).values() if isinstance(v, Tensor) and v.is_floating_point()), torch.float32)

        def back(value: Tensor) -> Tensor:
            value = (value.to(dtype) if value.is_floating_point() else value).to(trained.device)
            return value if value.ndim == 0 else value.new_zeros(trained.shape).masked_scatter(trained, value[mine])

        return {name: {key: back(value) for key, value in values.items()} for name, values in self.found.items()}


def statistics_of(
    losses: Mapping[str, Any], mine: Sequence[Measured], told: Sequence[Mapping[str, Any]], ranks: Ranks, what: str
) -> Statistics:
    """Gather, and make the statistic of each loss. Collective."""
    before = sum(int(word["size"]) for word in told[: ranks.rank])
    return Statistics(made(losses, gathered(mine, told, ranks, what)), [before, *(before + n for n in accumulate(map(_size, mine)))])
