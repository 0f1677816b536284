"""RLF007: a field is printed while the graph is built. It would show once, before the run, and no number."""
from start import Start
from rlflow import pipeline


@pipeline
def bad() -> None:
    s = Start()
    print(f"rewards: {s.rewards}")
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
