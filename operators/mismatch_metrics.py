"""How far apart rollout and training are, in numbers for metrics.jsonl: a line of its own in a pipeline, which nothing reads.

    r = π_old / π_rollout of a trained token, which π_rollout sampled

    kl_rollout_train_k1, _k3    mean of -log r, and of r - 1 - log r: KL(π_rollout ‖ π_old)
    kl_train_rollout_k1, _k3    mean of r log r, and of r log r - r + 1: KL(π_old ‖ π_rollout), by importance weights
    ess_tokens, ess_rows        effective sample size as a share, (Σ w)² / (n Σ w²): w = r a token, Π r a row
    ratio_min, _p01, _p99, _max of r
    ppl_ratio                   mean over rows of perplexity(π_old) / perplexity(π_rollout)
    kl_position_1 .. 4          kl_rollout_train_k3 of each quarter of a row's trained tokens: later ones have more behind them to differ in
    kl_gap_0 .. 8               the same of tokens whose weights were so many versions older (8: or more)

Weights and bounds that act on it are in mismatch.py. Only tensor methods: `rlflow check` never imports torch for this file.
"""

from __future__ import annotations

from rlflow import Current, Tensor, operator
from rlflow.measure import note

from .fields import OldLogProbs, Policy, ResponseMask, RolloutLogProbs, TokenVersions
from .loss.terms import LOG_RATIO_LIMIT
from .mismatch import log_ratio

__all__ = ["mismatch_metrics"]

POSITIONS = 4
OLDEST = 8


@operator(per="batch", sink=True, corrects=("version", "engine"))
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
    mask = response_mask.bool()
    log_r = log_ratio(old_log_probs, rollout_log_probs, mask).double()
    trained = mask.any(-1)
    if not bool(trained.any()):
        return
    of_tokens = log_r[mask].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    _divergences(of_tokens)
    _spread(of_tokens)
    of_rows = log_r.sum(-1)[trained]
    note("ess_tokens", _effective(of_tokens))
    note("ess_rows", _effective(of_rows))
    note("ppl_ratio", float((-of_rows / mask.sum(-1)[trained]).clamp(max=LOG_RATIO_LIMIT).exp().mean()))
    k3 = of_tokens.expm1() - of_tokens
    _means("kl_position", k3, _quarters(mask)[mask], range(1, POSITIONS + 1))
    _means("kl_gap", k3, (policy.version - token_versions)[mask].clamp(0, OLDEST), range(OLDEST + 1))


def _divergences(log_r: Tensor) -> None:
    r = log_r.exp()
    note("kl_rollout_train_k1", float(-log_r.mean()))
    note("kl_rollout_train_k3", float((log_r.expm1() - log_r).mean()))
    note("kl_train_rollout_k1", float((r * log_r).mean()))
    note("kl_train_rollout_k3", float((r * log_r - log_r.expm1()).mean()))


def _spread(log_r: Tensor) -> None:
    """Of `log_r` [n]. A percentile is a value that is there: the smallest with at least so large a share at or below it."""
    n = len(log_r)
    for name, rank in (("min", 1), ("p01", -(-n // 100)), ("p99", -(-99 * n // 100)), ("max", n)):
        note(f"ratio_{name}", float(log_r.kthvalue(rank).values.exp()))


def _effective(log_w: Tensor) -> float:
    """(Σ w)² / (n Σ w²) of w = e^log_w, in logs: a product over a long row has no float."""
    return float((2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)).exp()) / len(log_w)


def _quarters(mask: Tensor) -> Tensor:
    """i64[B, R]: 1 .. 4, in which quarter of its row's trained tokens a token is."""
    return (mask.cumsum(-1) - 1) * POSITIONS // mask.sum(-1, keepdim=True).clamp(min=1) + 1


def _means(name: str, x: Tensor, bucket: Tensor, buckets: range) -> None:
    for one in buckets:
        inside = bucket == one
        if bool(inside.any()):
            note(f"{name}_{one}", float(x[inside].mean()))
