"""RLF101: the mask stands where the rewards belong."""
from start import Start
from rlflow import pipeline
from vocabulary import grpo


@pipeline
def bad() -> None:
    s = Start()
    other = grpo(s.ready.response_mask, s.ready.response_mask, s.ready.uid)
    s.finish(s.rows(other.advantages))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
