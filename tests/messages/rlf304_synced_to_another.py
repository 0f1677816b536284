"""RLF304: another engine is synced than the one that samples and evaluates. Once for the engine, with all of its calls."""
from start import Start
from rlflow import pipeline
from vocabulary import Embedded, dataset, micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    other = Embedded("other")
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = s.actor.train(s.policy.move, micro.loss(ppo_clip()))
    s.policy.close(sync(trained, other))
    s.engine.evaluate(s.policy.served, dataset("test.parquet"))


@pipeline
def good() -> None:
    s = Start()
    other = Embedded("other")
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = s.actor.train(s.policy.move, micro.loss(ppo_clip()))
    s.policy.close(sync(sync(trained, other), s.engine))
    s.engine.evaluate(s.policy.served, dataset("test.parquet"))
