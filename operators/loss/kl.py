"""The KL divergence to a reference, in the loss."""

from __future__ import annotations

from rlflow import Loss, RowWeight, Tensor

from ..records import KlRows, PolicyForward
from .terms import LOG_RATIO_LIMIT, inside

__all__ = ["kl_penalty"]


class kl_penalty(Loss[PolicyForward, KlRows]):
    """beta · k3 a token: exp(d) - d - 1, d = ref_log_probs - log_probs. With beta = 0 it reads nothing.

    k3 is an unbiased, non-negative estimate of KL(new | ref) on tokens of the new policy: Schulman 2020, "Approximating KL divergence".
    Beyond d = 20 exp goes on as its tangent, so that the gradient stays finite and keeps its direction (towards the reference).
    """

    beta: float
    row_weight: RowWeight = "row"

    @property
    def active(self) -> bool:
        return self.beta > 0

    def __call__(self, forward: PolicyForward, rows: KlRows) -> Tensor:
        return self.beta * self._k3(forward, rows)

    def metrics(self, forward: PolicyForward, rows: KlRows) -> dict[str, Tensor]:
        """kl: the estimate itself, nats, without beta."""
        return {"kl": self._k3(forward, rows).detach()}

    def _k3(self, forward: PolicyForward, rows: KlRows) -> Tensor:
        difference = inside(rows.ref_log_probs - forward.log_probs, rows.response_mask)
        bounded = difference.clamp(max=LOG_RATIO_LIMIT)
        return bounded.exp() * (1 + difference - bounded) - difference - 1
