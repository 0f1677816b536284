"""RLF103: the first argument is wrong, and the other two agree: the first is named."""
from typing import Annotated

from start import Start
from rlflow import Tensor, f32, operator, pipeline
from vocabulary import Advantages, B, InputIds, R, ResponseMask, S


@operator(per="row")
def token_entropy(input_ids: InputIds) -> Annotated[Tensor, f32[B, S]]: ...  # type: ignore[empty-body]


@operator(per="row")
def next_token_entropy(input_ids: InputIds) -> Annotated[Tensor, f32[B, R]]: ...  # type: ignore[empty-body]


@operator(per="row")
def entropy_bonus(  # type: ignore[empty-body]
    entropies: Annotated[Tensor, f32[B, R]], advantages: Advantages, response_mask: ResponseMask
) -> Advantages: ...


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(entropy_bonus(token_entropy(s.ready.input_ids), s.advantages, s.ready.response_mask)))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(entropy_bonus(next_token_entropy(s.ready.input_ids), s.advantages, s.ready.response_mask)))
