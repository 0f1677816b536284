"""How much a row weighs in a loss, where its trajectory became several rows: `Loss.row_weight`.

    row           1                                                     every row alike
    trajectory    1 / rows of its trajectory                            every trajectory alike
    group         1 / (rows of its trajectory · trajectories of its group)  every group alike, and in it every trajectory

Only rows and trajectories with a trained token share; a row without one weighs 0. They are those of the whole mini-batch, on all
ranks, so no cut changes a weight. A weighed mean divides by what is weighed:

    rows     number of trajectories, of groups, with a trained token
    tokens   Σ over rows of weight · trained tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlflow.errors import EngineError
from rlflow.language.loss import RowWeight

if TYPE_CHECKING:
    from torch import Tensor

    from .protocol import RowsLike
    from .view import LossRows

__all__ = ["Shares", "local_trees"]

Key = tuple[int, int]  # (uid, traj_uid)


def local_trees(minibatch: Sequence[RowsLike]) -> list[list[int]]:
    """[uid, traj_uid, trained rows, trained tokens] of each trajectory among the real rows of this rank."""
    rows, tokens = Counter[Key](), Counter[Key]()
    for micro in minibatch:
        real = ~micro.is_pad.bool()
        trained = micro.response_mask.bool().sum(-1)[real].tolist()
        for key, count in zip(_keys(micro, real), trained, strict=True):
            rows[key] += count > 0
            tokens[key] += count
    return [[*key, rows[key], tokens[key]] for key in sorted(rows)]


class Shares:
    """The weights of one mini-batch, from the trees of all ranks."""

    def __init__(self, trees: Iterable[Sequence[int]]) -> None:
        self._rows, self._tokens = Counter[Key](), Counter[Key]()
        for uid, traj_uid, rows, tokens in trees:
            if rows:
                self._rows[uid, traj_uid] += rows
                self._tokens[uid, traj_uid] += tokens

    def of_rows(self, by: RowWeight, rows: LossRows) -> Tensor:
        """f64[b]: the weight of each row of a micro-batch; 0 for pads and rows without a trained token."""
        import torch

        real = ~rows.is_pad.bool()
        known = [self._weights[by].get(key, 0.0) for key in _keys(rows, real)]
        weights = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
        weights[real] = torch.tensor(known, dtype=torch.float64, device=real.device)
        return weights.where(rows.row_count() > 0, 0.0)

    def total(self, denominator: str, by: RowWeight) -> float:
        """What the weighed terms are divided by, of `rows` or `tokens`."""
        if denominator == "rows":
            return float(len(self._rows) if by == "trajectory" else len({uid for uid, _ in self._rows}))
        return sum(weight * self._tokens[key] for key, weight in self._weights[by].items())

    @cached_property
    def _weights(self) -> dict[str, dict[Key, float]]:
        """Of each row of a trajectory."""
        siblings = Counter(uid for uid, _ in self._rows)
        alone = {key: 1.0 / rows for key, rows in self._rows.items()}
        return {"trajectory": alone, "group": {key: weight / siblings[key[0]] for key, weight in alone.items()}}


def _keys(rows: Any, real: Tensor) -> list[Key]:
    lacking = [name for name in ("uid", "traj_uid") if not hasattr(rows, name)]
    if lacking:
        raise EngineError(
            f"a loss weighs rows by their trajectory, but the rows have no {' and '.join(lacking)}: let the record carry uid and traj_uid"
        )
    return list(zip(rows.uid[real].tolist(), rows.traj_uid[real].tolist(), strict=True))
