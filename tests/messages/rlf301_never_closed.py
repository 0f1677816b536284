"""RLF301: what was trained is handed to nobody."""
from start import Start
from rlflow import pipeline
from vocabulary import micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine)


@pipeline
def good() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))
