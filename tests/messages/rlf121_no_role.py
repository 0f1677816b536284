"""RLF121: an operator of one's own yields numbers that say nothing about themselves."""
from typing import Annotated

from start import Start
from rlflow import Tensor, f32, operator, pipeline
from vocabulary import Advantages, B, R, TokenRewards


@operator(per="row")
def centred(token_level_rewards: TokenRewards) -> Annotated[Tensor, f32[B, R]]: ...  # type: ignore[empty-body]


@operator(per="row")
def centred_advantages(token_level_rewards: TokenRewards) -> Advantages: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(centred(s.rewards)))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(centred_advantages(s.rewards)))
