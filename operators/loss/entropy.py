"""The entropy of the policy as a bonus."""

from __future__ import annotations

from rlflow import Aggregated, Tensor

from ..options import finite
from ..records import ModelRows, PolicyForward
from .terms import inside

__all__ = ["entropy_bonus"]


class entropy_bonus(Aggregated[PolicyForward, ModelRows]):
    """-coef · entropy of the policy's next-token distribution, nats (Williams and Peng 1991). With coef = 0 it is off."""

    coef: float

    def __post_init__(self) -> None:
        finite("entropy_bonus", coef=self.coef)

    @property
    def active(self) -> bool:
        return self.coef != 0

    def __call__(self, forward: PolicyForward, rows: ModelRows) -> Tensor:
        return self.aggregated(-self.coef * inside(forward.entropy, rows.response_mask), rows)
