"""The rows of a micro-batch end to end, as one sequence [1, M] without padding.

    rows         a0 a1 a2 a3 | b0 b1 | c0 c1 c2          input_ids [1, M], each row up to the token that its last trained position predicts
    position_ids  0  1  2  3    0  1    0  1  2          where they restart another row begins: attention does not look across
    tokens       a0 a1 a2      b0      c0 c1             next-token positions [1, N], N = M - b: the last of each row predicts nothing

What follows the last trained token of a row changes no loss (attention is causal), so it is not run at all. A row without one is run
with its first two tokens, as every row has a token that is predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlflow.errors import EngineError

from .view import Layout

__all__ = ["PackedRows"]

OWN = ("lengths", "predicting", "layout", "_of_tokens", "_of_ids", "_row", "_column", "_trained")


class PackedRows:
    """Rows whose fields are packed when they are read: [b, R] as [1, N], [b, S] as [1, M]; what has one number a row stays [b].

    layout: which row and position each of the N tokens is. predicting: i64[N], where in the M each of them is.
    """

    if TYPE_CHECKING:  # by __getattr__, like every other field
        input_ids: Tensor
        position_ids: Tensor
        response_mask: Tensor
        is_pad: Tensor

    def __init__(self, rows: Any) -> None:
        """rows: right-padded. Position ids that do not count 0, 1, 2, ... raise EngineError where they are read: a row would be several."""
        mask = rows.response_mask.bool()
        steps = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        self.lengths = (mask * steps).amax(-1).clamp(min=1) + 1  # tokens of each row that are run, its label included
        inside = torch.arange(mask.shape[1] + 1, device=mask.device) < self.lengths[:, None]
        self._trained = mask.any(-1)
        self._rows, self._of_tokens, self._of_ids = rows, tuple(mask.shape), tuple(inside.shape)
        self._row, self._column = inside.nonzero(as_tuple=True)
        self.predicting = (self._column < self.lengths[self._row] - 1).nonzero()[:, 0]
        self.layout = Layout(row=self._row[self.predicting], position=self._column[self.predicting].unsqueeze(0))

    def like(self, fields: Any) -> PackedRows:
        """Other fields of the same rows, packed alike: outputs that a model made of them one by one."""
        other = object.__new__(type(self))
        other.__dict__.update({name: self.__dict__[name] for name in OWN}, _rows=fields)
        return other

    def unpacked(self, x: Tensor) -> Tensor:
        """[1, N] → [b, R], 0 where nothing was run."""
        out = x.new_zeros(self._of_tokens)
        out[self._row[self.predicting], self._column[self.predicting]] = x[0]
        return out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._rows, name)
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        row, column = self._row, self._column
        if tuple(value.shape[:2]) == self._of_tokens:
            row, column = row[self.predicting], column[self.predicting]
        elif tuple(value.shape[:2]) != self._of_ids:
            return value
        setattr(self, name, self._counted(value[row, column]) if name == "position_ids" else value[row, column].unsqueeze(0))
        return self.__dict__[name]

    def _counted(self, given: Tensor) -> Tensor:
        """position_ids [1, M]. Those of a row without a trained token (a padding row may hold zeros) are not looked at."""
        wrong = (given != self._column) & (self._trained[self._row])
        if bool(wrong.any()):
            row = int(self._row[wrong.nonzero()[0, 0]])
            raise EngineError(f"position_ids of row {row} do not count 0, 1, 2, ...: packed rows are told apart by where they restart")
        counting: Tensor = self._column
        return counting.unsqueeze(0)
