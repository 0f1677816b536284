"""RLF012: a type of the signature is imported for type checkers only."""
from __future__ import annotations

from typing import TYPE_CHECKING

from start import Start
from rlflow import operator, pipeline
from vocabulary import Advantages

if TYPE_CHECKING:
    from vocabulary import ResponseMask


@operator(per="row")
def whiten(advantages: Advantages, response_mask: ResponseMask) -> Advantages: ...  # type: ignore[empty-body]


@operator(per="row")
def clip(advantages: Advantages, *, at: float) -> Advantages: ...  # type: ignore[empty-body]


@pipeline
def bad() -> None:
    s = Start()
    s.finish(s.rows(whiten(s.advantages, s.ready.response_mask)))


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows(clip(s.advantages, at=5.0)))
