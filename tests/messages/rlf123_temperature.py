"""RLF123: sampled at one temperature, scored at another."""
from start import Start
from rlflow import pipeline
from vocabulary import truncated_importance


def loop(temperature: float) -> None:
    s = Start(max_lag=1, temperature=temperature)
    weighed = truncated_importance(s.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)
    s.finish(s.rows(weighed))


@pipeline
def bad() -> None:
    loop(temperature=0.6)


@pipeline
def good() -> None:
    loop(temperature=1.0)
