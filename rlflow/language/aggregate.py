"""How the terms of tokens become one number: `aggregate`, `constant` and `row_weight`, options that losses share.

    aggregate                   term of a token                    divided by    paper
    "token-mean"                x                                  tokens        DAPO, arXiv:2503.14476, eq. 8
    "seq-mean-token-sum"        x                                  rows
    "seq-mean-token-mean"       x / trained tokens of its row      rows          GRPO, arXiv:2402.03300, eq. 3
    "seq-mean-token-sum-norm"   x / constant                       rows          Dr. GRPO, arXiv:2503.20783, section 3

Tokens and rows are those of the mini-batch over all ranks; rows count only where they have a trained token. So no cut changes them:
the constant is an option, never the width of what a micro-batch happens to be padded to.

    terms, row a [2 4], row b [3]:  token-mean 9/3 = 3     seq-mean-token-sum (6 + 3)/2 = 4.5     seq-mean-token-mean (3 + 3)/2 = 3
                                    seq-mean-token-sum-norm, constant 6: (6/6 + 3/6)/2 = 0.75
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from ..errors import UsageError
from .loss import Loss, RowWeight
from .record import Record

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NORM", "Aggregate", "Aggregated", "faults_of"]

Aggregate: TypeAlias = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
NORM = "seq-mean-token-sum-norm"
ForwardT = TypeVar("ForwardT", contravariant=True)
ReadsT = TypeVar("ReadsT", bound=Record, contravariant=True)


class Aggregated(Loss[ForwardT, ReadsT]):
    """A loss whose terms are one a token, and that says how they are averaged. Its options are keywords, after those of the loss.

    aggregate: see the table above. constant: read by "seq-mean-token-sum-norm" alone, which needs one above 0 (say, the longest answer
    that is sampled, in tokens). row_weight: what weighs 1, see `Loss.row_weight`; rows and tokens are then counted as weighed.

        class imitate(Aggregated[PolicyForward, ModelRows]):
            def __call__(self, forward, rows):
                return self.aggregated(-forward.log_probs, rows)
    """

    _: KW_ONLY
    aggregate: Aggregate = "token-mean"
    constant: float | None = None
    row_weight: RowWeight = "row"

    @property
    def denominator(self) -> Literal["tokens", "rows"]:
        return "tokens" if self.aggregate == "token-mean" else "rows"

    def aggregated(self, terms: Tensor, rows: Any, *, masked: bool = False) -> Tensor:
        """`terms` (tokens, in the layout of `rows`) as the aggregation wants them, 0 outside the mask; the engine sums and divides.

        masked: they are 0 there already, in value and gradient, which spares a pass over them.
        Raises UsageError for an aggregation that there is not, or one that lacks its constant.
        """
        for fault in faults_of(self):
            raise UsageError(f"{type(self).__name__}: {fault}")
        if not masked:
            terms = terms.where(rows.response_mask.bool(), terms.new_zeros(()))
        if self.aggregate == "seq-mean-token-mean":
            share: Tensor = rows.per_token(1 / rows.row_count().clamp(min=1).to(terms.dtype))
            return terms * share if masked else terms.mul_(share)  # in place where the tensor is our own
        return terms / self.constant if self.aggregate == NORM and self.constant else terms


def faults_of(loss: Loss[Any, Any]) -> Iterator[str]:
    """Why the terms of a loss cannot be averaged as its options say."""
    if not isinstance(loss, Aggregated):
        return
    aggregate, constant = loss.aggregate, loss.constant
    if aggregate not in get_args(Aggregate):
        yield f"aggregate is {aggregate!r}; use {', '.join(get_args(Aggregate))}"
    elif aggregate == NORM and (isinstance(constant, bool) or not isinstance(constant, int | float) or not 0 < constant < float("inf")):
        yield f'aggregate="{NORM}" divides by `constant`, a number above 0 that no batch changes; it is {constant!r}'
