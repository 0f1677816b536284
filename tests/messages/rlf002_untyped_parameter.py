"""RLF002: a field is handed to a parameter that says nothing about it."""
from start import Start
from rlflow import Tensor, operator, pipeline
from vocabulary import Advantages


@operator(per="row")
def clip_bare(advantages: Tensor, *, at: float) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="row")
def clip(advantages: Advantages, *, at: float) -> Advantages: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(clip_bare(s.advantages, at=5.0)))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(clip(s.advantages, at=5.0)))
