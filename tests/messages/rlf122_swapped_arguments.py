"""RLF122: two arguments of equal type are exchanged."""
from start import Start
from rlflow import operator, pipeline
from vocabulary import Advantages, TokenRewards


@operator(per="row")
def blend(advantages: Advantages, token_level_rewards: TokenRewards) -> Advantages: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(blend(s.rewards, s.advantages)))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(blend(s.advantages, s.rewards)))
