"""RLF204: the engine is asked for the trainer's own copy. That it was moved by then is no news."""
from start import Start
from rlflow import pipeline
from vocabulary import dataset


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows())
    s.engine.evaluate(s.policy.current, dataset("test.parquet"))  # type: ignore[arg-type]


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
    s.engine.evaluate(s.policy.served, dataset("test.parquet"))
