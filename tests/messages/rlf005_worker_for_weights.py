"""RLF005: the worker, where the weights that it loads are asked for."""
from start import Start
from rlflow import Feedback, pipeline
from vocabulary import Torch, micro_pack, pad, ppo_clip, shard


@pipeline
def bad() -> None:
    s = Start()
    twin = Torch("twin")
    other = Feedback("other", init=twin)  # type: ignore[arg-type, var-annotated]
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=twin), max_tokens=4096)
    other.close(twin.train(other.move, micro.loss(ppo_clip())))
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    twin = Torch("twin")
    other = Feedback("other", init=twin.load())
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=twin), max_tokens=4096)
    other.close(twin.train(other.move, micro.loss(ppo_clip())))
    s.finish(s.rows())
