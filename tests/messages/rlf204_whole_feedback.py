"""RLF204: the feedback itself, where one of its versions is meant. Each call is told which; the loop that they close is no news."""
from start import Start
from rlflow import pipeline
from vocabulary import dataset, micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    reference = s.actor.log_probs(s.policy, s.ready.input_ids, s.ready.response_mask)  # type: ignore[arg-type]
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy, micro.loss(ppo_clip())), s.engine))  # type: ignore[arg-type]
    s.engine.evaluate(s.policy, dataset("test.parquet"))  # type: ignore[arg-type]


@pipeline
def good() -> None:
    s = Start()
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))
    s.engine.evaluate(s.policy.served, dataset("test.parquet"))
