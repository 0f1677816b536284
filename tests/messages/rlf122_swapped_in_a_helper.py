"""RLF122: swapped in the call of a helper. The help is what to write there, not in the helper."""
from start import Start
from rlflow import Tensor, operator, pipeline
from vocabulary import Advantages, TokenRewards


@operator(per="row")
def blend(advantages: Advantages, token_level_rewards: TokenRewards) -> Advantages: ...  # type: ignore[empty-body]


def mixed(*, advantages: Tensor, token_level_rewards: Tensor) -> Tensor:
    return blend(advantages, token_level_rewards)


@pipeline
def bad() -> None:
    s = Start()
    weighed = mixed(advantages=s.rewards, token_level_rewards=s.advantages)
    s.finish(s.rows(weighed))


@pipeline
def good() -> None:
    s = Start()
    weighed = mixed(advantages=s.advantages, token_level_rewards=s.rewards)
    s.finish(s.rows(weighed))
