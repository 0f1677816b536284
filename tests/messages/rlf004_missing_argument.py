"""RLF004: a call that does not bind."""
from start import Start
from rlflow import pipeline
from vocabulary import grpo


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(grpo(s.rewards, s.ready.response_mask).advantages))  # type: ignore[call-arg]


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
