"""Estimators that look along a row: gae."""

from __future__ import annotations

from rlflow import Tensor, operator

from ..fields import ResponseMask, TokenRewards, Values
from ..records import Advantage
from .groups import refuse_non_finite


@operator(per="batch")
def gae(
    token_level_rewards: TokenRewards,
    values: Values,
    response_mask: ResponseMask,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
) -> Advantage:
    """Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} - V_t, over a row's own valid tokens; V is 0 after the last.

    Schulman et al. 2016 (arXiv:1506.02438), eq. 16. Masked tokens (a tool's, a user's) are no steps: t + 1 is the next valid token.
    `returns` = advantages + values before whitening. whiten: mean 0 and variance 1 (n - 1) over all valid tokens of the batch.

        γ = λ = 1, r = 0, 0, 1, V = 0.5, 0.25, 0.5, all valid: advantages 0.5, 0.75, 0.5, returns 1, 1, 1
    """
    mask = response_mask.bool()
    valid_first = (~mask).byte().argsort(dim=-1, stable=True)  # each row's valid tokens, in order, then the rest
    rewards, value = (x.double().where(mask, 0.0).gather(-1, valid_first) for x in (token_level_rewards, values))
    refuse_non_finite("token_level_rewards", rewards.sum(-1))
    refuse_non_finite("values", value.sum(-1))
    delta = rewards - value
    delta[:, :-1] += gamma * value[:, 1:]
    advantages = mask.double().scatter(-1, valid_first, discounted_suffix_sums(delta, gamma * lam)).where(mask, 0.0)
    returns = (advantages + values.double()).where(mask, 0.0)
    return Advantage(advantages=(whiten_tokens(advantages, mask) if whiten else advantages).float(), returns=returns.float())


def discounted_suffix_sums(x: Tensor, discount: float) -> Tensor:
    """y_t = Σ_k discount^k x_{t+k} along the last axis, by doubling: after the step of width w a term holds its next 2w."""
    sums, width = x.clone(), 1
    while width < x.shape[-1]:
        shifted = sums[..., width:].clone()
        sums[..., :-width] += discount**width * shifted
        width *= 2
    return sums


def whiten_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / std over the masked tokens of the whole batch; 0 outside, and everywhere if fewer than two tokens are valid."""
    count = mask.sum()
    mean = x.where(mask, 0.0).sum() / count.clamp(min=1)
    centred = (x - mean).where(mask, 0.0)
    variance = (centred**2).sum() / (count - 1).clamp(min=1)
    return centred * (variance + 1e-8).rsqrt()
