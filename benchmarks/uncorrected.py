"""What `truncated_importance` is compared with: advantages as they are, however old the samples. For benchmarks only."""

from __future__ import annotations

from operators.fields import Advantages, OldLogProbs, ResponseMask, RolloutLogProbs
from rlflow import operator


@operator(per="row", corrects=("version", "engine"))
def uncorrected(
    advantages: Advantages, old_log_probs: OldLogProbs, rollout_log_probs: RolloutLogProbs, response_mask: ResponseMask
) -> Advantages:
    """The advantages. It claims to correct, so that the pipeline is let through, and costs the same forward."""
    return advantages
