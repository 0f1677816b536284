"""RLF015: a batch of no prompts. What is made of it is no news."""
from start import Start
from rlflow import pipeline


@pipeline
def bad() -> None:
    s = Start(prompts=-3)
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start(prompts=3)
    s.finish(s.rows())
