"""RLF204: a rollout from the trainer's own copy. A type checker says so too."""
from start import Start
from rlflow import pipeline
from vocabulary import dataset


@pipeline
def bad() -> None:
    s = Start()
    s.engine.evaluate(s.policy.current, dataset("test.parquet"))  # type: ignore[arg-type]
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    s.engine.evaluate(s.policy.served, dataset("test.parquet"))
    s.finish(s.rows())
