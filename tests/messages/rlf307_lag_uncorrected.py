"""RLF307: rows may be two versions old, the ratio starts at the newest, and nothing weighs the difference."""
from start import Start
from rlflow import pipeline
from vocabulary import truncated_importance


@pipeline
def bad() -> None:
    s = Start(max_lag=2)
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start(max_lag=2)
    s.finish(s.rows(truncated_importance(s.advantages, s.old(), s.ready.rollout_log_probs, s.ready.response_mask)))
