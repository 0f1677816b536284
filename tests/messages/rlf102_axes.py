"""RLF102: one number a row where one a token is asked for."""
from start import Start
from rlflow import pipeline
from vocabulary import shaping


@pipeline
def bad() -> None:
    s = Start()
    rewards = shaping(s.score.is_correct)
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
