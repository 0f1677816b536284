"""Tokens that are too old to be trained on, hidden from the losses: for a feedback with `stale="mask"`.

    token_versions   [ 3, 3, 4, 6, 7]     of the weights that sampled each token, -1 where none did
    response_mask    [ 1, 1, 0, 1, 1]
    mask_stale       [ 0, 0, 0, 1, 1]     at version 7 with max_lag=2: what versions 5 and later sampled

Only the losses are to read the result: a denominator then counts the unmasked tokens, while baselines go by all rows with their own mask.
"""

from __future__ import annotations

from rlflow import Current, operator
from rlflow.measure import note

from .fields import Policy, ResponseMask, TokenVersions

__all__ = ["mask_stale"]


@operator(per="row", corrects=("stale",))
def mask_stale(policy: Current[Policy], response_mask: ResponseMask, token_versions: TokenVersions) -> ResponseMask:
    """`response_mask` without the tokens that weights older than version k - max_lag sampled; k and max_lag are the feedback's.

    response_mask flag[B, R], token_versions i32[B, R]. Notes `masked_tokens` and `unmasked_tokens`.
    """
    shown = response_mask.bool()
    fresh = shown & (token_versions >= policy.version - policy.max_lag)
    note("masked_tokens", float(shown.sum() - fresh.sum()))
    note("unmasked_tokens", float(fresh.sum()))
    return fresh
