"""RLF001: a field that the record does not have."""
from start import Start
from rlflow import pipeline
from vocabulary import exact_match


@pipeline
def bad() -> None:
    s = Start()
    score = exact_match(s.ready.response_txt, s.ready.answer, s.ready.response_mask)  # type: ignore[attr-defined]
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
