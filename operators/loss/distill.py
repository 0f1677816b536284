"""Learning from a teacher that scores what the policy says."""

from __future__ import annotations

from rlflow import Aggregated, Tensor
from rlflow.errors import UsageError

from ..options import finite
from ..records import PolicyForward, TeacherRows
from .kl import KlEstimator, kl_estimate, refuse_estimator

__all__ = ["opd"]


class opd(Aggregated[PolicyForward, TeacherRows]):
    """coef · KL(π | π_teacher) a token, the reverse divergence, estimated at the sampled token.

    On-policy distillation: Agarwal et al. 2024, GKD (arXiv:2306.13649); Lu et al. 2025 (Thinking Machines), "On-policy distillation".
    By default the value is k1, log π - log π_teacher, the unbiased estimate; the gradient is (log π - log π_teacher) ∇ log π (k2's),
    the unbiased one of the divergence on samples of π: what REINFORCE with the reward log π_teacher - log π gives. There is no ratio, so
    the samples are to be those of the policy in training (one optimizer step a batch); for older ones turn the difference into an
    advantage and train with ppo_clip. estimator, straight_through: the table in kl.py, with the teacher as the reference.

        log π = -1, log π_teacher = -1.5: 0.5, gradient 0.5: the policy says it less
    """

    coef: float = 1.0
    estimator: KlEstimator = "k1"
    straight_through: bool = True

    def __post_init__(self) -> None:
        finite("opd", coef=self.coef)
        refuse_estimator("opd", self.estimator)
        if self.estimator in ("k1", "kl") and not self.straight_through:
            raise UsageError("opd: k1 alone teaches nothing (its gradient has mean 0): straight_through=True, or estimator k2 or k3")

    @property
    def active(self) -> bool:
        return self.coef != 0

    def __call__(self, forward: PolicyForward, rows: TeacherRows) -> Tensor:
        return self.aggregated(self.coef * self._estimate(forward, rows), rows)

    def metrics(self, forward: PolicyForward, rows: TeacherRows) -> dict[str, Tensor]:
        """teacher_kl: the estimate itself, nats, without coef."""
        return {"teacher_kl": self._estimate(forward, rows).detach()}

    def _estimate(self, forward: PolicyForward, rows: TeacherRows) -> Tensor:
        return kl_estimate(forward.log_probs, rows.teacher_log_probs, rows.response_mask, self.estimator, self.straight_through)
