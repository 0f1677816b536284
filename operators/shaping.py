"""From rewards to rewards: what is trained on costs something, what was judged stays as it was. Chain them in any order.

    token_level_scores ──shape_rewards──▶ token_level_rewards ──overlong_penalty──▶ ──kl_in_reward──▶ token_level_rewards ──▶ estimator

    overlong_penalty   at the last trained token: 0 up to limit - buffer, then down to -penalty at the limit
    kl_in_reward       at every trained token: minus beta times its divergence from a reference

Both take shaped rewards and never raw ones: filters and metrics go on reading what the verifier said. Nothing is written outside the
mask, and what stands there is not read (NaN there is harmless). Fields may lie in any layout (ragged.py); the result has that of
`response_mask`. More rewards by length are in lengths.py.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from rlflow import Tensor, operator
from rlflow.errors import UsageError
from rlflow.measure import note, note_mean

from .fields import OldLogProbs, RefLogProbs, ResponseMask, TokenCount, TokenRewards
from .loss.kl import KlEstimator, kl_estimate, refuse_estimator
from .options import finite, within
from .ragged import Tokens, refuse_not_finite

__all__ = ["kl_in_reward", "overlong_penalty"]


@operator(per="row", ragged=True)
def overlong_penalty(
    token_level_rewards: TokenRewards, response_mask: ResponseMask, *, limit: TokenCount, buffer: TokenCount, penalty: float = 1.0
) -> TokenRewards:
    """Take up to `penalty` off an answer that comes near the limit: so that length is unlearnt before it is cut off.

        |y| <= limit - buffer            0
        |y| <= limit                     penalty · (limit - buffer - |y|) / buffer
        else                             -penalty

    f32[B, R] and flag[B, R]; |y| is the number of trained tokens. The Soft Overlong Punishment of DAPO (Yu et al. 2025, arXiv:2503.14476,
    eq. 13), with L_max = limit and L_cache = buffer. Notes `overlong_rows`. Raises UsageError unless 0 < buffer <= limit.

        limit=10, buffer=4: of 6, 8, 10, 12 trained tokens 0, -0.5, -1, -1
    """
    if not 0 < buffer <= limit:
        raise UsageError(f"overlong_penalty(limit={limit}, buffer={buffer}): the buffer is the last part of the limit, 0 < buffer <= limit")
    within("overlong_penalty", 0, math.inf, penalty=penalty)
    finite("overlong_penalty", penalty=penalty)
    tokens = Tokens.of(response_mask)
    share = np.clip((tokens.counts - (limit - buffer)) / buffer, 0, 1)
    note("overlong_rows", float((share > 0).sum()))
    rewards, trained = tokens.read("token_level_rewards", token_level_rewards).copy(), tokens.counts > 0
    rewards[tokens.starts[1:][trained] - 1] -= (penalty * share)[trained]
    return cast(Tensor, tokens.write(rewards))


@operator(per="row", ragged=True)
def kl_in_reward(
    token_level_rewards: TokenRewards,
    old_log_probs: OldLogProbs,
    ref_log_probs: RefLogProbs,
    response_mask: ResponseMask,
    *,
    beta: float,
    estimator: KlEstimator = "k1",
) -> TokenRewards:
    """r_t - beta · k_t at every trained token: k_t estimates the divergence of the policy that sampled from a reference.

    All f32[B, R], response_mask flag[B, R]. old_log_probs: of the policy before the update, or
    `anchor_on_rollout(rollout_log_probs)`, which needs no forward.
    estimator: k1 | abs | k2 | k3 of loss/kl.py. With k1 (log π - log π_ref) a token may be paid for what it took back.
    Ziegler et al. 2019 (arXiv:1909.08593), eq. 2; Ouyang et al. 2022 (arXiv:2203.02155), section 3.5, with k1.
    Notes the mean of k_t over trained tokens, `kl`. It is a reward, so no gradient flows through it; a penalty in the loss is `kl_penalty`.
    Raises UsageError for an estimator that there is not and for a beta below 0, DataError naming the row for log-probs that are not finite.

        mask 1, 0, 1, rewards 0, 0, 1, k1 0.2, 9, -0.1, beta=0.5: rewards -0.1, 0, 1.05, whose sum is the return 0.95
    """
    refuse_estimator("kl_in_reward", estimator)
    within("kl_in_reward", 0, math.inf, beta=beta)
    finite("kl_in_reward", beta=beta)
    import torch  # not at the top: `rlflow check` reads this file and needs no torch

    tokens = Tokens.of(response_mask)
    policy = torch.tensor(tokens.read("old_log_probs", old_log_probs))
    reference = torch.tensor(tokens.read("ref_log_probs", ref_log_probs))
    everywhere = torch.ones(tokens.total, dtype=torch.bool)
    divergence = kl_estimate(policy, reference, everywhere, estimator, straight_through=False).numpy()
    of_rows = tokens.sums(divergence)
    refuse_not_finite("log-probs", of_rows)
    note_mean("kl", float(of_rows.sum()), rows=tokens.total)
    return cast(Tensor, tokens.write(tokens.read("token_level_rewards", token_level_rewards) - beta * divergence))
