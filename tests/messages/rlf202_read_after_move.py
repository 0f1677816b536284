"""RLF202: version k is read on the worker that has already trained it away. The replica that the engine serves is another copy: it may be read."""
from start import Start
from rlflow import pipeline
from vocabulary import dataset, micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = s.actor.train(s.policy.move, micro.loss(ppo_clip()))
    late = s.actor.log_probs(s.policy.current, s.ready.input_ids, s.ready.response_mask)
    s.policy.close(sync(trained, s.engine))


@pipeline
def good() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = s.actor.train(s.policy.move, micro.loss(ppo_clip()))
    s.engine.evaluate(s.policy.served, dataset("test.parquet"))
    s.policy.close(sync(trained, s.engine))
