"""RLF210: a penalty that nothing reads. The pipeline is accepted, the call is dropped; it was probably meant to be trained on."""
from start import Start
from rlflow import pipeline
from vocabulary import grpo, length_penalty


@pipeline
def bad() -> None:
    s = Start()
    shaped = length_penalty(s.rewards, s.ready.response_mask, limit=100)
    s.finish(s.rows(grpo(s.rewards, s.ready.response_mask, s.ready.uid).advantages))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
