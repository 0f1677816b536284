"""How far apart rollout and training are, in numbers for metrics.jsonl: a line of its own in a pipeline, which nothing reads.

    r = π_old / π_rollout of a trained token, which π_rollout sampled

    kl_rollout_train_k1, _k3    mean of -log r, and of r - 1 - log r: KL(π_rollout ‖ π_old)
    kl_train_rollout_k1, _k3    mean of r log r, and of r log r - r + 1: KL(π_old ‖ π_rollout), by importance weights
    ess_tokens, ess_rows        effective sample size as a share, (Σ w)² / (n Σ w²): w = r a token, Π r a row
    ratio_min, _p01, _p99, _max of r
    ppl_ratio                   mean over rows of perplexity(π_old) / perplexity(π_rollout)
    kl_position_1 .. 4          kl_rollout_train_k3 of each quarter of a row's trained tokens: later ones have more behind them to differ in
    kl_gap_0 .. 8               the same of tokens whose weights were so many versions older (8: or more)

Weights and bounds that act on it are in mismatch.py; as there, log-ratios are within ±20, and fields lie in any layout.
"""

from __future__ import annotations

import numpy as np

from rlflow import Current, operator
from rlflow.data.dtypes import Array
from rlflow.measure import note

from .fields import OldLogProbs, Policy, ResponseMask, RolloutLogProbs, TokenVersions
from .mismatch import k3, log_ratio
from .ragged import Tokens

__all__ = ["mismatch_metrics"]

POSITIONS = 4
OLDEST = 8


@operator(per="batch", sink=True, corrects=("version", "engine"), ragged=True)
def mismatch_metrics(
    policy: Current[Policy],
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    response_mask: ResponseMask,
    token_versions: TokenVersions,
) -> None:
    """Notes the numbers listed above, over all trained tokens of the global batch; nothing where none is trained.

    Log-probs f32[B, R], response_mask flag[B, R], token_versions i32[B, R]: the version that sampled each token.
    That it may compare two versions does not make it a correction: it has no result that a loss could read.
    Raises DataError for log-probs that are not finite inside the mask.

        one row, log r = 0.1, -0.1: kl_rollout_train_k1 0, _k3 0.005004, ess_tokens 0.990164, ratio_max 1.105171, ppl_ratio 1
    """
    tokens = Tokens.of(response_mask)
    if not tokens.total:
        return
    log_r = log_ratio(tokens, old_log_probs, rollout_log_probs).astype(np.float64)
    each = k3(log_r)
    _divergences(log_r, each)
    _spread(log_r)
    trained, of_rows = tokens.counts > 0, tokens.sums(log_r)
    note("ess_tokens", _effective(log_r))
    note("ess_rows", _effective(of_rows[trained]))
    note("ppl_ratio", float(np.exp(-of_rows[trained] / tokens.counts[trained]).mean()))
    _means("kl_position", each, _quarters(tokens), range(1, POSITIONS + 1))
    gap = policy.version - tokens.read("token_versions", token_versions)
    _means("kl_gap", each, np.clip(gap, 0, OLDEST), range(OLDEST + 1))


def _divergences(log_r: Array, each: Array) -> None:
    """each: k3 of each token."""
    r = np.exp(log_r)
    note("kl_rollout_train_k1", float(-log_r.mean()))
    note("kl_rollout_train_k3", float(each.mean()))
    note("kl_train_rollout_k1", float((r * log_r).mean()))
    note("kl_train_rollout_k3", float((r * log_r - np.expm1(log_r)).mean()))


def _spread(log_r: Array) -> None:
    """A percentile is a value that is there: the smallest with at least so large a share at or below it."""
    n = len(log_r)
    ranks = {"min": 0, "p01": -(-n // 100) - 1, "p99": -(-99 * n // 100) - 1, "max": n - 1}
    ordered = np.partition(log_r, sorted(set(ranks.values())))
    for name, rank in ranks.items():
        note(f"ratio_{name}", float(np.exp(ordered[rank])))


def _effective(log_w: Array) -> float:
    """(Σ w)² / (n Σ w²) of w = e^log_w. Only proportions count, so the largest is made 1: a product over a long row has no float."""
    w = np.exp(log_w - log_w.max())
    return float(w.sum() ** 2 / (len(w) * (w**2).sum()))


def _quarters(tokens: Tokens) -> Array:
    """i64[trained tokens]: 1 .. 4, in which quarter of its row's trained tokens a token is."""
    place = np.arange(tokens.total) - tokens.each(tokens.starts[:-1])
    return np.asarray(place * POSITIONS // tokens.each(tokens.counts) + 1)


def _means(name: str, x: Array, bucket: Array, buckets: range) -> None:
    count = np.bincount(bucket, minlength=buckets.stop)
    total = np.bincount(bucket, weights=x, minlength=buckets.stop)
    for one in buckets:
        if count[one]:
            note(f"{name}_{one}", float(total[one] / count[one]))
