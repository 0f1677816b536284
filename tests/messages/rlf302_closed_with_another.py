"""RLF302: one feedback is closed with the weights of another. Both are policies, so the types agree."""
from start import Start
from rlflow import Feedback, pipeline
from vocabulary import Torch, micro_pack, pad, ppo_clip, shard, sync


@pipeline
def bad() -> None:
    s = Start()
    twin = Torch("twin")
    other = Feedback("other", init=twin.load())
    micro = micro_pack(shard(pad(s.rows(), multiple=2), on=s.actor), max_tokens=4096)
    trained = sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine)
    s.policy.close(trained)
    other.close(trained)


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
