"""RLF501: a baseline over groups whose members are on several ranks."""
from start import Start
from rlflow import Record, pipeline
from vocabulary import InputIds, OldLogProbs, ResponseMask, TokenRewards, TrainRows, Uid, grpo, micro_pack, ppo_clip, shard, sync


class Rewarded(Record):
    uid: Uid
    token_level_rewards: TokenRewards
    input_ids: InputIds
    response_mask: ResponseMask
    old_log_probs: OldLogProbs


def train(s: Start, rows: TrainRows) -> None:
    micro = micro_pack(rows, max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


@pipeline
def bad() -> None:
    s = Start()
    ready = s.ready
    cut = shard(Rewarded(
        uid=ready.uid, token_level_rewards=s.rewards, input_ids=ready.input_ids, response_mask=ready.response_mask, old_log_probs=s.old(),
    ), on=s.actor)
    late = grpo(cut.token_level_rewards, cut.response_mask, cut.uid).advantages
    train(s, TrainRows(input_ids=cut.input_ids, response_mask=cut.response_mask, old_log_probs=cut.old_log_probs, advantages=late))


@pipeline
def good() -> None:
    s = Start()
    train(s, shard(s.rows(), on=s.actor))
