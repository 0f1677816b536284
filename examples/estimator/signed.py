"""An advantage estimator of your own: only whether an answer is better than the mean of its prompt's answers, not by how much."""

from operators.fields import ResponseMask, TokenRewards, Uid
from operators.records import Advantage
from rlflow import operator


@operator(per="group", least_group=2)
def signed(token_level_rewards: TokenRewards, response_mask: ResponseMask, uid: Uid) -> Advantage:
    mask = response_mask.bool()
    scores = token_level_rewards.where(mask, 0.0).double().sum(-1)  # in float32 the mean of equal scores may be another number
    group, trained = uid.unique(return_inverse=True)[1], mask.any(-1)  # type: ignore[no-untyped-call]
    total, count = (scores.new_zeros(len(uid)).index_add(0, group, x) for x in (scores, trained.double()))
    advantages = (scores - (total / count.clamp(min=1))[group]).sign()[:, None].float() * mask
    return Advantage(advantages=advantages, returns=advantages.clone())
