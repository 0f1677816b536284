"""RLF013: a declaration that does not fit the signature. Refused where it is written, before any pipeline."""
from collections.abc import Callable

from rlflow import RowsT, operator, pipeline
from start import Start
from vocabulary import micro_pack, ppo_clip, rebalance, shard, sync


def declare() -> Callable[..., object]:
    @operator(per="batch", rows="pad")
    def fill_up(rows: RowsT, *, to: int) -> RowsT: ...  # type: ignore[empty-body]

    return fill_up


def bad() -> None:
    declare()


@operator(per="batch", rows="pad")
def fill(rows: RowsT, *, multiple: int) -> RowsT: ...  # type: ignore[empty-body]


@pipeline
def good() -> None:
    s = Start()
    micro = micro_pack(shard(rebalance(fill(s.rows(), multiple=2), pieces=8), on=s.actor), max_tokens=4096)
    s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(ppo_clip())), s.engine))
