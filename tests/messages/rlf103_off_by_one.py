"""RLF103: one value a token meets one value a next-token position. Broadcasting would fail late, slicing would shift by one."""
from typing import Annotated

from start import Start
from rlflow import Tensor, f32, operator, pipeline
from vocabulary import Advantages, B, InputIds, R, S


@operator(per="row")
def token_entropy(input_ids: InputIds) -> Annotated[Tensor, f32[B, S]]: ...  # type: ignore[empty-body]


@operator(per="row")
def next_token_entropy(input_ids: InputIds) -> Annotated[Tensor, f32[B, R]]: ...  # type: ignore[empty-body]


@operator(per="row")
def entropy_bonus(advantages: Advantages, entropies: Annotated[Tensor, f32[B, R]]) -> Advantages: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(entropy_bonus(s.advantages, token_entropy(s.ready.input_ids))))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(entropy_bonus(s.advantages, next_token_entropy(s.ready.input_ids))))
