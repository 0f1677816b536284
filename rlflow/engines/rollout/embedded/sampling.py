"""Next tokens and their log-probs, for all rows at once; seeded per request.

Token t of a request is argmax over ids v of log p(v) + gumbel(seed, t, v): an exact draw from p (the Gumbel-max trick), with
noise that is a hash of its three arguments. So a request's tokens depend on its own seed and logits only, not on its
neighbours in the batch, on retractions, or on any generator's state.

The reported log-prob is log softmax(logits / temperature), before truncation and before stop tokens are masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["SamplingRows", "gumbel_noise", "mix64", "select_tokens", "truncate"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Per-row parameters of N rows; the masks say whether any row needs the slower steps."""

    temperature: NDArray[np.float32]  # [N]
    greedy: NDArray[np.bool_]  # [N]
    seed: NDArray[np.uint64]  # [N]
    step: NDArray[np.int64]  # [N] index of the output token that is drawn
    top_k: NDArray[np.int64]  # [N] 0 = all
    top_p: NDArray[np.float32]  # [N]
    min_p: NDArray[np.float32]  # [N]
    truncated: NDArray[np.bool_]  # [N] any of the three above is in use
    masked_ids: list[tuple[int, tuple[int, ...]]]  # (row, ids that must not be drawn)


def mix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that scatters every bit."""
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


def gumbel_noise(seed: NDArray[np.uint64], step: NDArray[np.int64], vocab_size: int) -> NDArray[np.float64]:
    """Standard Gumbel noise [N, vocab_size], a pure function of (seed, step, token id)."""
    key = mix64(mix64(seed) + (step.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    ids = np.arange(1, vocab_size + 1, dtype=np.uint64) * _GOLDEN
    bits = mix64(key[:, None] + ids)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1), never an end
    return -np.log(-np.log(uniform))


def truncate(log_probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`log_probs` [N, V] with −inf outside top-k ∩ top-p ∩ min-p; the most likely token always stays.

    top_k: [N] (0 = all). top_p: keep tokens whose more likely ones together have at most probability top_p. min_p: keep
    tokens of at least min_p times the largest probability.
    """
    ordered, index = log_probs.sort(dim=-1, descending=True)
    probs = ordered.softmax(-1)  # not exp, which computes the last elements of all rows together in another way
    rank = torch.arange(log_probs.shape[-1]).expand_as(log_probs)
    drop = (top_k[:, None] > 0) & (rank >= top_k[:, None])
    drop |= probs.cumsum(-1) - probs > top_p[:, None]
    drop |= probs < probs[:, :1] * min_p[:, None]
    drop[:, 0] = False
    return torch.empty_like(log_probs).scatter_(-1, index, ordered.masked_fill(drop, -torch.inf))


def select_tokens(logits: Tensor, rows: SamplingRows) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw one token a row from float32 logits [N, V]: (token ids [N], their log-probs [N]); NaN log-probs for NaN logits."""
    if (rows.temperature != 1).any():
        logits = logits / torch.from_numpy(rows.temperature)[:, None]
    log_probs = logits.log_softmax(-1)
    candidates = log_probs
    for row, ids in rows.masked_ids:
        if candidates is log_probs:
            candidates = log_probs.clone()
        candidates[row, list(ids)] = -torch.inf
    if rows.truncated.any():
        candidates = _truncate_rows(candidates, rows)
    if not rows.greedy.all():
        noise = gumbel_noise(rows.seed, rows.step, logits.shape[-1])
        noise[rows.greedy] = 0.0
        candidates = candidates + torch.from_numpy(noise)
    tokens = candidates.argmax(-1)
    return tokens.numpy(), log_probs.gather(-1, tokens[:, None])[:, 0].numpy()


def _truncate_rows(candidates: Tensor, rows: SamplingRows) -> Tensor:
    which = torch.from_numpy(np.flatnonzero(rows.truncated))
    cut = truncate(
        candidates[which].log_softmax(-1),  # again a distribution where stop tokens were masked
        torch.from_numpy(rows.top_k)[which],
        torch.from_numpy(rows.top_p)[which],
        torch.from_numpy(rows.min_p)[which],
    )
    return candidates.index_copy(0, which, cut)
