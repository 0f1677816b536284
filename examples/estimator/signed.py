"""An advantage estimator of your own: only whether an answer is better than the mean of its prompt's answers, not by how much."""

from operators.fields import ResponseMask, TokenRewards, Uid
from operators.records import Advantage
from rlflow import operator


@operator(per="group", least_group=2)
def signed(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    scores = token_level_rewards.where(response_mask.bool(), 0.0).sum(-1)
    group = uid.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    mean = scores.new_zeros(len(uid)).index_add(0, group, scores) / group.bincount(minlength=len(uid)).clamp(min=1)
    advantages = (scores - mean[group]).sign()[:, None] * response_mask
    return Advantage(advantages=advantages, returns=advantages.clone())
