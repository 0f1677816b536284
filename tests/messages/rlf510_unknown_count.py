"""RLF510: how many leaf rows the trees have, only the run knows."""
from start import Start
from rlflow import pipeline
from vocabulary import TrainRows, micro_pack, pad, ppo_clip, shard, sync


def train(s: Start, rows: TrainRows) -> None:
    micro = micro_pack(shard(rows, on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


@pipeline
def bad() -> None:
    s = Start(tree=True)
    train(s, s.rows())


@pipeline
def good() -> None:
    s = Start(tree=True)
    train(s, pad(s.rows(), multiple=2))
