"""The row view: sums over one row, and back to its tokens, in whatever layout the tokens lie. What a loss reads besides fields.

    padded     tokens [b, R]     a record as it is                        rows.row_sum(x) = where(response_mask, x, 0).sum(-1)
    packed     tokens [1, N]     the rows of a micro-batch end to end     the same sums, by segment: rlflow/engines/train/view.py
    cp slices  either, in part   a rank has some positions of each row    the same sums, reduced over the ranks of one cp group

A loss that uses the row view and elementwise methods of tensors, and nothing else, is right in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RowView"]


class RowView:
    """What every record hands to a loss. "Tokens" are next-token positions, in the layout of `response_mask`; b counts rows.

    Example, padded: response_mask [[1, 0, 1], [0, 0, 0]], x [[1., 9., 3.], [9., 9., nan]]:

        row_sum(x) = [4, 0]     row_mean(x) = [2, 0]     row_count() = [2, 0]     per_token([5., 6.]) = [[5, 5, 5], [6, 6, 6]]
    """

    def row_sum(self, x: Tensor) -> Tensor:
        """Σ over the trained tokens of each row: tokens → [b]. Masked before it is summed: NaN outside the mask does no harm."""
        return self._sum(self._inside(x))

    def row_mean(self, x: Tensor) -> Tensor:
        """Mean over the trained tokens of each row: tokens → [b]; 0 for a row without one."""
        return self.row_sum(x) / self.row_count().clamp(min=1)

    def row_count(self) -> Tensor:
        """Trained tokens of each row: i64[b]."""
        return self._sum(self._mask())

    def per_token(self, y: Tensor) -> Tensor:
        """Each token its row's value: [b] → tokens, inside the mask and outside."""
        return y.unsqueeze(-1).expand(self._mask().shape)

    def positions(self) -> Tensor:
        """Which position of its row each token is, from 0: i64, tokens. With uid, traj_uid and leaf it names a token in every cut."""
        mask = self._mask()
        return mask.new_ones(mask.shape).cumsum(-1) - 1

    def statistics(self) -> Mapping[str, Tensor]:
        """What `Loss.statistic` made of the whole mini-batch. Raises UsageError where nothing has: a bare record has no mini-batch."""
        raise UsageError(
            f"{type(self).__name__} has no statistics: a train engine makes them, and so does rlflow.testing.loss_value, "
            "for a loss that has `first_pass` and `statistic`"
        )

    # --- what another layout overrides, with per_token and positions ----------------------------------------------------------------
    def _sum(self, x: Tensor) -> Tensor:
        """Σ over each row of what is 0 outside the mask: tokens → [b]. Of flags: how many."""
        import torch

        if x.dtype != torch.bool:
            return x.sum(-1)
        return x.sum(-1, dtype=torch.int32).long()  # without it each flag becomes an int64 first, in memory

    def _mask(self) -> Tensor:
        mask: Any = getattr(self, "response_mask", None)
        if mask is None:
            raise UsageError(f"{type(self).__name__} has no field `response_mask`, which says what of a row is trained")
        return mask.bool()  # type: ignore[no-any-return]

    def _inside(self, x: Tensor) -> Tensor:
        return x.where(self._mask(), x.new_zeros(()))
