"""RLF014: a record inherits one field from two records that mean different things by it."""
from typing import Annotated

from rlflow import Record, Tensor, f32, pipeline
from start import Start
from vocabulary import B, PpoRows, reward


class Normalised(Record):
    advantages: Annotated[Tensor, f32[B], reward("shaped")]


def bad() -> None:
    class Both(PpoRows, Normalised): ...


@pipeline
def good() -> None:
    s = Start()
    s.finish(s.rows())
