"""Losses: options are fields, what is read is a record. They return masked terms and never divide by a count over rows.

    policy.py       ppo_clip        advantages, old_log_probs          a ratio a token, clipped (two bounds, dual clip)
                    cispo           advantages, old_log_probs          its weight is clipped, its gradient is not
                    sapo            advantages, old_log_probs          the gradient fades smoothly
                    dppo            advantages, old_log_probs          bounded by divergence (tv, kl), not by ratio
                    gpg             advantages                         the policy gradient itself
                    dro             advantages, old_log_probs          a quadratic pull to the old policy
    sequence.py     gspo            advantages, old_log_probs          a ratio a row
                    gmpo            advantages, old_log_probs          a ratio a row, clipped a token
                    topr            advantages, rollout_log_probs      truncated importance for what went wrong
    covariance.py   clip_cov        ppo_clip's, uid, traj_uid, leaf    drops few tokens of large covariance
                    kl_cov          ppo_clip's, uid, traj_uid, leaf    penalises the tokens of largest covariance
    kl.py           kl_penalty      ref_log_probs                      k1, k2, k3, abs, straight-through; inactive at beta = 0
    distill.py      opd             teacher_log_probs                  reverse KL to a teacher, on the policy's own samples
    entropy.py      entropy_bonus   entropy of the forward             inactive at coef = 0
    value.py        value_clip      values (new and old), returns      critic
    moe.py          load_balancing  router_logits of the forward       experts; inactive at coef = 0
                    router_z_loss   router_logits of the forward       experts; inactive at coef = 0
    terms.py        what they share: masking, the bound of log-ratios, metrics

The forward gives `log_probs` (of the critic: `values`); all read `response_mask`. A policy loss reads `PpoRows` or a parent of it, so that
one takes the place of another in one line; the exceptions say what else they read.

**Averages** (`rlflow.Aggregated`): every loss here has the keywords aggregate, constant and row_weight. gspo, gmpo and sapo default to
"seq-mean-token-mean", topr to "seq-mean-token-sum", the others to "token-mean". The engine divides the sum of the terms by the count of
`denominator` over the whole mini-batch on all ranks.
**Cuts.** Micro-batches, ranks, packing and order change none of them but load_balancing, which says so (`split_invariant = False`);
clip_cov and kl_cov make one pass more for a statistic of the whole mini-batch.
**Masks.** Every input is masked *before* it is used (`terms.inside`), so junk or NaN outside `response_mask` touches neither value nor
gradient. Log-ratios are bounded by ±20 before exp; beyond, a token has no gradient.
A loss of yours ends with `self.aggregated(terms, rows)`, or `terms.where(rows.response_mask, 0)`; one that returns `[b]`, a term a row, has
summed over such terms (`rows.row_sum`): the engine refuses terms of tokens that are not 0 outside the mask, but cannot look into a sum.
The rows that the engine hands it are 0 outside the mask, whatever lay there. What the forward yields is not: mask that before an exp
(`x.where(rows.response_mask, 0)`), which overflows where nothing is trained, and 0 · infinity stays in the gradient.
`metrics` gives masked terms too, of tokens: the engine reports their mean over tokens.
"""

from __future__ import annotations

from .covariance import clip_cov, kl_cov
from .distill import opd
from .entropy import entropy_bonus
from .kl import kl_penalty
from .moe import load_balancing, router_z_loss
from .policy import cispo, dppo, dro, gpg, ppo_clip, sapo
from .sequence import gmpo, gspo, topr
from .value import value_clip

__all__ = [
    "cispo",
    "clip_cov",
    "dppo",
    "dro",
    "entropy_bonus",
    "gmpo",
    "gpg",
    "gspo",
    "kl_cov",
    "kl_penalty",
    "load_balancing",
    "opd",
    "ppo_clip",
    "router_z_loss",
    "sapo",
    "topr",
    "value_clip",
]
