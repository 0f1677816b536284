"""RLF005: a number where a field is asked for."""
from start import Start
from rlflow import pipeline
from vocabulary import truncated_importance


@pipeline
def bad() -> None:
    s = Start(max_lag=1)
    weighed = truncated_importance(s.advantages, s.old(), 0.0, s.ready.response_mask)  # type: ignore[arg-type]
    s.finish(s.rows(weighed))


@pipeline
def good() -> None:
    s = Start(max_lag=1)
    weighed = truncated_importance(s.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)
    s.finish(s.rows(weighed))
