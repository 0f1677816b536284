"""Rewards that depend on how long a response is: raw scores in, shaped rewards out.

    length_penalty      so much off for each token beyond a limit (reward.py)
    cosine_length       right answers are worth less the longer they are, wrong ones more; a cosine between the two ends
    group_length        the shortest of a group gains, the longest loses; a wrong answer never gains

A length is the number of trained tokens of a row: what an environment or a tool said does not count. The raw score stays as it was,
in `token_level_scores`: filters and metrics go by that. A row without a trained token has no place for a reward and gets none.
"""

from __future__ import annotations

import math
from typing import Any, cast

from rlflow import Tensor, operator
from rlflow.errors import DataError

from .fields import IsCorrect, ResponseMask, TokenCount, TokenRewards, TokenScores, Uid
from .reward import last_token

__all__ = ["cosine_length", "group_length"]


@operator(per="row")
def cosine_length(
    token_level_scores: TokenScores, is_correct: IsCorrect, response_mask: ResponseMask, *, max_tokens: TokenCount,
    right: tuple[float, float] = (2.0, 1.0), wrong: tuple[float, float] = (-10.0, 0.0), exceeded: float = -10.0,
) -> TokenRewards:  # fmt: skip
    """The cosine reward of Yeo et al. 2025 (arXiv:2502.03373): it takes the place of the score, and goes by `is_correct` alone.

        r(t) = r_T + (r_0 - r_T) / 2 · (1 + cos(π t / max_tokens))        t < max_tokens
        r(t) = exceeded                                                   else

    right, wrong: (r_0, r_T), what an answer of no tokens and one of max_tokens would get; exceeded: one that came to no end. The
    defaults are those of the paper's runs.
    Right answers of 0, 5, 10 of at most 10 tokens: 2, 1.5, and the 10th is exceeded: -10. Raises DataError for max_tokens below 1.
    """
    if max_tokens < 1:
        raise DataError(f"cosine_length(max_tokens={max_tokens}): give the length that a response may have, 1 or more")
    tokens = response_mask.bool().sum(-1).to(token_level_scores.dtype)
    part = 0.5 * (1.0 + (tokens * (math.pi / max_tokens)).cos())
    is_right = is_correct >= 1.0
    reward = (right[1] + (right[0] - right[1]) * part).where(is_right, wrong[1] + (wrong[0] - wrong[1]) * part)
    return _at_the_end(reward.where(tokens < max_tokens, exceeded), response_mask, token_level_scores)


@operator(per="group", least_group=2)
def group_length(
    token_level_scores: TokenScores, is_correct: IsCorrect, response_mask: ResponseMask, uid: Uid, *, weight: float = 1.0
) -> TokenRewards:
    """The length reward of Kimi k1.5 (arXiv:2501.12599, 2.3.3), `weight` times, added to the score at the last trained token.

        λ_i = 1/2 - (len_i - shortest) / (longest - shortest)       of the rows of one uid; 0 where all are as long
        right: λ_i        wrong: min(0, λ_i)

    Lengths 2, 4, 6, all right: +0.5, 0, -0.5; all wrong: 0, 0, -0.5.
    """
    tokens = response_mask.bool().sum(-1)
    group = cast(Any, uid).unique(return_inverse=True)[1]  # torch's has no types
    valid = tokens > 0  # what has no trained token is no short answer
    shortest, longest = _extreme(tokens, group, valid, "amin"), _extreme(tokens, group, valid, "amax")
    spread = (longest - shortest).to(token_level_scores.dtype)
    length = 0.5 - (tokens - shortest).to(token_level_scores.dtype) / spread.clamp(min=1.0)
    reward = length.where(is_correct >= 1.0, length.clamp(max=0.0)).where(spread > 0, 0.0)
    return token_level_scores + weight * _at_the_end(reward, response_mask, token_level_scores)


def _extreme(tokens: Tensor, group: Tensor, valid: Tensor, which: str) -> Tensor:
    """The shortest or longest of the group of each row, i64[B]; 0 in a group without a valid row."""
    found = tokens.new_zeros(tokens.shape[0])
    return found.scatter_reduce(0, group[valid], tokens[valid], which, include_self=False)[group]


def _at_the_end(reward: Tensor, response_mask: Tensor, like: Tensor) -> Tensor:
    """[B] at the last trained token of each row, f32[B, R]."""
    return last_token(response_mask).to(like.dtype) * reward.to(like.dtype)[:, None]
