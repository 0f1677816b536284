"""RLF110: a result whose size no argument tells."""
from typing import Annotated

from start import Start
from rlflow import Tensor, f32, fresh, operator, pipeline
from vocabulary import InputIds, T


@operator(per="row")
def resample(input_ids: InputIds) -> Annotated[Tensor, f32[T]]: ...  # type: ignore[empty-body]


@operator(per="row", sizes={T: fresh()}, sink=True)
def resample_sized(input_ids: InputIds) -> Annotated[Tensor, f32[T]]: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    extra = resample(s.ready.input_ids)
    s.finish(s.rows())


@pipeline
def good() -> None:
    s = Start()
    extra = resample_sized(s.ready.input_ids)
    s.finish(s.rows())
