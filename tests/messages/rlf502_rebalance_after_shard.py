"""RLF502: rows are reordered over the whole batch after they were cut into slices."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows, micro_pack, ppo_clip, rebalance, shard, sync


def train(s: Start, rows: TrainRows) -> None:
    micro = micro_pack(rows, max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


@pipeline
def bad() -> None:
    s = Start()
    train(s, rebalance(shard(s.rows(), on=s.actor), pieces=8))


@pipeline
def good() -> None:
    s = Start()
    train(s, shard(rebalance(s.rows(), pieces=8), on=s.actor))
