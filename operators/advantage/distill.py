"""On-policy distillation: a teacher says of each sampled token how much likelier it would have been."""

from __future__ import annotations

from rlflow import operator

from ..fields import ResponseMask, RolloutLogProbs, TeacherLogProbs
from ..options import finite
from ..ragged import Tokens
from ..records import Advantage


@operator(per="row", ragged=True)
def distill(
    teacher_log_probs: TeacherLogProbs, rollout_log_probs: RolloutLogProbs, response_mask: ResponseMask, *, coef: float = 1.0
) -> Advantage:
    """coef · (log π_teacher - log π_rollout) of each sampled token: minus the reverse KL a token, as the policy that sampled estimates it.

    Agarwal et al. 2024, GKD (arXiv:2306.13649), with λ = 1; as an advantage in a policy-gradient loss: Lu, Thinking Machines Lab 2025,
    "On-Policy Distillation". Tokens are looked at alone, nothing is discounted or compared: a trajectory may be alone in its group,
    and where teacher and policy agree it gets 0. `returns` repeat the advantages. Natural logarithms; DataError where one is not finite.

        teacher -1.0, -0.2, policy -0.5, -1.2: advantages -0.5, 1.0
    """
    finite("distill", coef=coef)
    tokens = Tokens.of(response_mask)
    teacher, policy = tokens.finite("teacher_log_probs", teacher_log_probs), tokens.finite("rollout_log_probs", rollout_log_probs)
    x = (teacher - policy) * coef
    return Advantage(advantages=tokens.write(x), returns=tokens.write(x))
