"""RLF510: 512 rows over 3 ranks with 2 mini-batches each."""
from start import Start
from rlflow import pipeline
from vocabulary import micro_pack, ppo_clip, shard, sync


def loop(prompts: int) -> None:
    s = Start(dp=3, prompts=prompts)
    micro = micro_pack(shard(s.rows(), on=s.actor, mini_batches=2), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))


@pipeline
def bad() -> None:
    loop(prompts=64)


@pipeline
def good() -> None:
    loop(prompts=66)
