"""RLF123: rows are sampled at one temperature and trained at another. No two log-probs of them meet, so the ratio starts at 1 all the same."""
from start import Start
from rlflow import pipeline


def loop(temperature: float) -> None:
    s = Start(temperature=temperature)
    s.finish(s.rows())


@pipeline
def bad() -> None:
    loop(temperature=0.7)


@pipeline
def good() -> None:
    loop(temperature=1.0)
