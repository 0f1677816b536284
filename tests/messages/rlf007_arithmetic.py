"""RLF007: arithmetic on a field, outside of an operator."""
from start import Start
from rlflow import operator, pipeline
from vocabulary import Advantages


@operator(per="row")
def scale(advantages: Advantages, *, by: float) -> Advantages:
    return advantages * by


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(s.advantages * 2))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(scale(s.advantages, by=2)))
