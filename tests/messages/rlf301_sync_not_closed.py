"""RLF301: the new version is synced, and not handed to the next step. The message holds the line that is missing."""
from start import Start
from rlflow import pipeline
from vocabulary import micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = s.actor.train(s.policy.move, micro.loss(ppo_clip()))
    sync(trained, s.engine)


@pipeline
def good() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = s.actor.train(s.policy.move, micro.loss(ppo_clip()))
    s.policy.close(sync(trained, s.engine))
