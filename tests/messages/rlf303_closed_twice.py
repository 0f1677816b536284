"""RLF303: one step makes one next version."""
from start import Start
from rlflow import pipeline
from vocabulary import micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine)
    s.policy.close(trained)
    s.policy.close(trained)


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
