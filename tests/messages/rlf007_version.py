"""RLF007: a version is known at run time only."""
from start import Start
from rlflow import pipeline


@pipeline
def bad() -> None:
    s = Start()
    if s.policy.current.version > 10:
        s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
