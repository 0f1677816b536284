"""RLF015: no data-parallel rank. The numbers that are computed from it are told once, where it is first given."""
from rlflow import Feedback, pipeline
from start import Start
from vocabulary import Torch, micro_pack, pad, ppo_clip, rebalance, shard, sync


def loop(dp: int, max_lag: int) -> None:
    s = Start()
    twin = Torch("twin", dp=dp)
    other = Feedback("other", init=twin.load(), max_lag=max_lag)
    rows = rebalance(pad(s.rows(), multiple=2 * dp), pieces=4 * dp)
    micro = micro_pack(shard(rows, on=twin), max_tokens=4096)
    other.close(twin.train(other.move, micro.loss(ppo_clip())))
    s.finish(s.rows())


@pipeline
def bad() -> None:
    loop(dp=0, max_lag=-1)


@pipeline
def good() -> None:
    loop(dp=2, max_lag=0)
