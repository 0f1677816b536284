"""Rows were sampled by a rollout engine, maybe some versions ago, and are trained by another: what their log-probs differ in, corrected.

    r_t = π_old(y_t) / π_rollout(y_t)          the ratio of a token: the trainer's log-prob (version k) against the engine's (k - lag)

    truncated_importance         A · min(cap, r_t)                                              a token
    importance_weighted          A · w(r): token, row (Π r) or geometric mean; truncated, or 0 outside a band
    self_normalized_importance   the same, divided by the mean weight of the batch
    reject_tokens, reject_rows   the response mask without tokens, or whole rows, that r says were another policy's
    anchor_on_rollout            no correction here: the loss takes its ratio against the policy that sampled

What holds for all of them:
- Bounds are on π_old / π_rollout, never its inverse. 2 means: training finds the token twice as likely as the engine that said it.
- A row's ratio is over its trained tokens (`response_mask`); what stands outside is not read (NaN there is harmless), and 0 or False is
  written there.
- Log-ratios are bounded by ±20 before exp, of a token and of a row's sum.
- NaN or infinity inside the mask is a DataError that names the row.
- A rejected token is out of the mask: it is not trained, and no denominator counts it; of a rejected row all are. Hand the result to the
  losses, and the whole mask to the estimators: a baseline is over all that was sampled.
- Masks and weights alike declare `corrects=("version", "engine")`: RLF307 and RLF123 are silent about what they were given.
- Fields may lie in any layout (`ragged.py`): right-padded, jagged, Columns. The result has that of `response_mask`; a run pads nothing.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from rlflow import Tensor, operator
from rlflow.data.dtypes import Array
from rlflow.errors import UsageError
from rlflow.measure import note

from .fields import Advantages, OldLogProbs, ResponseMask, RolloutLogProbs
from .loss.terms import LOG_RATIO_LIMIT
from .options import above
from .ragged import Tokens, refuse_not_finite

__all__ = [
    "anchor_on_rollout",
    "importance_weighted",
    "reject_rows",
    "reject_tokens",
    "self_normalized_importance",
    "truncated_importance",
]

Level: TypeAlias = Literal["token", "sequence", "geometric"]
Outside: TypeAlias = Literal["truncate", "zero"]
Divergence: TypeAlias = Literal["ratio", "k2", "k3"]
Over: TypeAlias = Literal["sum", "mean", "max"]


# --- weights --------------------------------------------------------------------------------------------------------------------------
@operator(per="row", corrects=("version", "engine"), ragged=True)
def truncated_importance(
    advantages: Advantages,
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    response_mask: ResponseMask,
    *,
    cap: float = 2.0,
) -> Advantages:
    """Advantages weighed a token by min(cap, π_old / π_rollout): corrects for samples of other weights or another engine.

    Truncated importance sampling: Espeholt et al. 2018, IMPALA (arXiv:1802.01561), the bounded ρ; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training". As the weight is not negative, weighing A is weighing the clipped term.
    Raises UsageError for a cap that is not above 0.

        old -1.0, rollout -1.5: weight e^0.5 = 1.6487      rollout -3.0: e^2 = 7.39, capped at 2
    """
    above("truncated_importance", 0, cap=cap)
    tokens = Tokens.of(response_mask)
    weights = _weights(tokens, old_log_probs, rollout_log_probs, "token", 0.0, cap, "truncate")
    return _weighed(tokens, advantages, weights)


@operator(per="row", corrects=("version", "engine"), ragged=True)
def importance_weighted(
    advantages: Advantages,
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    response_mask: ResponseMask,
    *,
    level: Level = "token",
    low: float = 0.0,
    high: float = 2.0,
    outside: Outside = "truncate",
) -> Advantages:
    """Advantages times the importance weight π_old / π_rollout, kept between `low` and `high`.

    All f32[B, R], response_mask flag[B, R].
    level       "token": r_t. "sequence": Π r_t of the row, unbiased and of high variance. "geometric": (Π r_t)^(1/n), n trained tokens.
    outside     "truncate": a weight beyond a bound is that bound (TIS). "zero": it is 0, its token or row has no gradient, and still
                counts in the denominator (MIS; a token at a time it is IcePop's). Use reject_tokens or reject_rows not to count it.
    Raises UsageError for bounds that are not 0 <= low < high, and for an option that there is not.

    Ionides 2008, truncated importance sampling; Yao et al. 2025 (TIS); Zhao et al. 2025, IcePop ("Small leak can sink a great ship");
    Zheng et al. 2025, GSPO (arXiv:2507.18071), the geometric mean.

        log-ratios of a row 0.4, 0.2:  token 1.4918, 1.2214    sequence e^0.6 = 1.8221 twice    geometric e^0.3 = 1.3499 twice
        level="token", high=1.4:  "truncate" 1.4, 1.2214       "zero" 0, 1.2214
    """
    tokens = Tokens.of(response_mask)
    weights = _weights(tokens, old_log_probs, rollout_log_probs, level, low, high, outside)
    return _weighed(tokens, advantages, weights)


@operator(per="batch", corrects=("version", "engine"), ragged=True)
def self_normalized_importance(
    advantages: Advantages,
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    response_mask: ResponseMask,
    *,
    level: Level = "token",
    low: float = 0.0,
    high: float = 2.0,
    outside: Outside = "truncate",
) -> Advantages:
    """`importance_weighted`, its weights divided by their mean: their scale is 1 whatever the truncation took away.

    The mean is over the trained tokens of the batch for level="token", else over its rows with a trained token. Of the whole global batch,
    before it is cut: so it depends on no micro-batch, and not on dp. Where every weight is 0 they stay 0.
    Owen 2013, Monte Carlo theory, methods and examples, section 9.2.

        weights 2, 1, 0 of three tokens: mean 1, unchanged        weights 2, 2, 1, 1: mean 1.5, so 1.3333, 1.3333, 0.6667, 0.6667
    """
    tokens = Tokens.of(response_mask)
    weights = _weights(tokens, old_log_probs, rollout_log_probs, level, low, high, outside)
    counted = weights if level == "token" else weights[tokens.starts[:-1][tokens.counts > 0]]  # all tokens of a row have the row's weight
    mean = counted.mean(dtype=np.float64) if len(counted) else 0.0
    return _weighed(tokens, advantages, weights / (mean or 1.0))


# --- rejection ------------------------------------------------------------------------------------------------------------------------
@operator(per="row", corrects=("version", "engine"), ragged=True)
def reject_tokens(
    response_mask: ResponseMask,
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    *,
    by: Divergence = "ratio",
    low: float = 0.0,
    high: float,
) -> ResponseMask:
    """`response_mask` without the tokens whose divergence is not within [low, high].

    flag[B, R]; log-probs f32[B, R].
    by      "ratio": r = π_old / π_rollout; a usual band is 0.5 to 2. "k2": (log r)² / 2; 0.1 is r = 1.56 or 0.64. "k3": r - 1 - log r;
            0.1 is r = 1.52 or 0.62. k1 is the log of r: a band on it is the band on r.
    Notes `rejected_tokens` and `kept_tokens`.
    Raises UsageError for bounds that are not 0 <= low < high, and for an option that there is not.
    k2, k3: Schulman 2020, "Approximating KL divergence".

        r = 0.4, 1, 1.9, 2.1, low=0.5, high=2: the mask is 0, 1, 1, 0
    """
    tokens = Tokens.of(response_mask)
    return _kept(tokens, _within(_divergence(log_ratio(tokens, old_log_probs, rollout_log_probs), by), by, low, high))


@operator(per="row", corrects=("version", "engine"), ragged=True)
def reject_rows(
    response_mask: ResponseMask,
    old_log_probs: OldLogProbs,
    rollout_log_probs: RolloutLogProbs,
    *,
    by: Divergence = "ratio",
    over: Over = "mean",
    low: float = 0.0,
    high: float,
) -> ResponseMask:
    """`response_mask` without the rows whose divergence over their trained tokens is not within [low, high].

    flag[B, R]; log-probs f32[B, R]. `by` as in `reject_tokens`.
    over    "sum" and "mean" of the tokens' k2 or k3; of "ratio" the product and the geometric mean. "max": no token may be outside, a veto.
            A sum grows with the length of the row, so its bounds do: "mean" asks the same of long and short ones.
    Geometric means lie close to 1: a usual band is 0.99 to 1.01 with one version and two engines, 0.9 to 1.1 with lag.
    Notes `rejected_rows` and `kept_rows`, of those with a trained token, `rejected_tokens` and `kept_tokens`.
    Raises UsageError for bounds that are not 0 <= low < high, and for an option that there is not.

        log-ratios of a row 0.4, 0.2, high=1.5:  mean e^0.3 = 1.35, kept    sum e^0.6 = 1.82, rejected    max 1.49, kept
    """
    _check("over", over, Over)
    tokens = Tokens.of(response_mask)
    per_token = _divergence(log_ratio(tokens, old_log_probs, rollout_log_probs), by)
    if over == "max":
        inside = tokens.sums(~_within(per_token, by, low, high)) == 0
    else:
        total = tokens.sums(per_token)
        inside = _within(total if over == "sum" else total / np.maximum(tokens.counts, 1), by, low, high)
    trained = tokens.counts > 0
    note("rejected_rows", float((trained & ~inside).sum()))
    note("kept_rows", float((trained & inside).sum()))
    return _kept(tokens, tokens.each(inside))


@operator(per="row", corrects=("version", "engine"))
def anchor_on_rollout(rollout_log_probs: RolloutLogProbs) -> OldLogProbs:
    """Take the sampling policy itself as the anchor of the ratio, instead of recomputed log-probs: says so where it is done."""
    return rollout_log_probs.clone()


# --- the ratio ------------------------------------------------------------------------------------------------------------------------
def log_ratio(tokens: Tokens, old_log_probs: Any, rollout_log_probs: Any) -> Array:
    """f32[trained tokens]: log π_old / π_rollout within ±20. Raises DataError naming the first row that holds NaN or infinity."""
    difference = tokens.read("old_log_probs", old_log_probs) - tokens.read("rollout_log_probs", rollout_log_probs)
    refuse_not_finite("log-probs", tokens.sums(difference))
    return np.asarray(np.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def _weights(tokens: Tokens, old: Any, rollout: Any, level: Level, low: float, high: float, outside: Outside) -> Array:
    """[trained tokens]: the weight of each."""
    _check("level", level, Level)
    _check("outside", outside, Outside)
    _check_band(low, high)
    log_r = log_ratio(tokens, old, rollout)
    if level != "token":
        total = tokens.sums(log_r)
        log_r = tokens.each(total / np.maximum(tokens.counts, 1) if level == "geometric" else total)
    ratio = np.exp(np.clip(log_r, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return np.clip(ratio, low, high) if outside == "truncate" else np.where((ratio >= low) & (ratio <= high), ratio, 0)


def _weighed(tokens: Tokens, advantages: Any, weights: Array) -> Tensor:
    return cast(Tensor, tokens.write(tokens.read("advantages", advantages) * weights))


def _divergence(log_r: Array, by: Divergence) -> Array:
    """A number a token that a row's sum or mean can be taken of: of the ratio its log."""
    _check("by", by, Divergence)
    if by == "ratio":
        return log_r
    return log_r**2 / 2 if by == "k2" else k3(log_r)


def k3(log_r: Array) -> Array:
    """r - 1 - log r a token, nats: what estimates KL(π_rollout ‖ π_old) and is never negative."""
    return np.asarray(np.expm1(log_r) - log_r)


def _within(value: Array, by: Divergence, low: float, high: float) -> Array:
    _check_band(low, high)
    compared = np.exp(np.clip(value, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) if by == "ratio" else value
    return np.asarray((compared >= low) & (compared <= high))


def _kept(tokens: Tokens, kept: Array) -> Tensor:
    note("rejected_tokens", float((~kept).sum()))
    note("kept_tokens", float(kept.sum()))
    return cast(Tensor, tokens.write_mask(kept))


def _check(name: str, given: str, choices: Any) -> None:
    if given not in get_args(choices):
        raise UsageError(f"{name}={given!r}: it is one of {', '.join(get_args(choices))}")


def _check_band(low: float, high: float) -> None:
    if not 0 <= low < high:  # NaN is neither
        raise UsageError(f"low={low}, high={high}: bounds, of a ratio as of a divergence, are 0 <= low < high")
