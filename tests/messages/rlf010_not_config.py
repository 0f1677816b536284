"""RLF010: a value that another process could not rebuild."""
from dataclasses import dataclass

from start import Start
from rlflow import operator, pipeline
from vocabulary import TokenRewards, grpo


class Bonus:
    def __init__(self, per_token: float) -> None:
        self.per_token = per_token


@dataclass(frozen=True)
class FrozenBonus:
    per_token: float


@operator(per="row")
def with_bonus(token_level_rewards: TokenRewards, *, bonus: Bonus | FrozenBonus) -> TokenRewards: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    rewards = with_bonus(s.rewards, bonus=Bonus(0.1))
    s.finish(s.rows(grpo(rewards, s.ready.response_mask, s.ready.uid).advantages))


@pipeline
def good() -> None:
    s = Start()
    rewards = with_bonus(s.rewards, bonus=FrozenBonus(0.1))
    s.finish(s.rows(grpo(rewards, s.ready.response_mask, s.ready.uid).advantages))
