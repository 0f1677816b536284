"""RLF006: an `if` on a field. While the graph is built a field has no value, so the branch would be taken once, for ever."""
from start import Start
from rlflow import pipeline


@pipeline
def bad() -> None:
    s = Start()
    if s.score.is_correct:
        s.finish(s.rows())


@pipeline
def good(train: bool = True) -> None:
    s = Start()
    if train:
        s.finish(s.rows())
