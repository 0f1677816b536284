"""RLF131: rewards of the whole batch meet rows of one data-parallel rank."""
from start import Start
from rlflow import operator, pipeline
from vocabulary import Advantages, TokenRewards, TrainRows, micro_pack, ppo_clip, shard, sync


@operator(per="row")
def blend(advantages: Advantages, token_level_rewards: TokenRewards) -> Advantages: ...  # type: ignore[empty-body]


def train(s: Start, cut: TrainRows, advantages: Advantages) -> None:
    rows = TrainRows(input_ids=cut.input_ids, response_mask=cut.response_mask, old_log_probs=cut.old_log_probs, advantages=advantages)
    micro = micro_pack(rows, max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


@pipeline
def bad() -> None:
    s = Start()
    rows = shard(s.rows(), on=s.actor)
    train(s, rows, blend(rows.advantages, s.rewards))


@pipeline
def good() -> None:
    s = Start()
    rows = shard(s.rows(blend(s.advantages, s.rewards)), on=s.actor)
    train(s, rows, rows.advantages)
