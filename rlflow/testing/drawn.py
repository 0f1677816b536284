"""Eight rows to cut, and four padding rows: what a batch of trajectory trees looks like to a loss.

    row   uid  traj_uid  leaf   tokens   trained
    0     0    0         0      9        7          a trajectory of two leaves
    1     0    0         1      3        1
    2     0    1         0      6        3
    3     1    0         0      8        2 + 3      a gap in the middle: a tool answered
    4     1    1         0      5        none       masked as a whole
    5     2    0         0      7        2 + 2
    6     2    0         1      4        2
    7     2    1         0      2        1
    8-11  padding: two tokens, uid and traj_uid of their own

What lies outside the mask is chosen a row: 0 (rows) or ordinary (forward), large numbers, or NaN. A model yields numbers, so its forward
has large ones in place of NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlflow.errors import UsageError
from rlflow.language.loss import Loss, forward_of, reads_of
from rlflow.language.spec import Spec

__all__ = ["LENGTHS", "PADS", "REAL", "Drawn", "draw"]

REAL, PADS = range(8), range(8, 12)
LENGTHS = (10, 5, 7, 9, 6, 8, 5, 3, 2, 2, 2, 2)  # tokens; positions are one less
TRAINED = ((2, 9, None), (3, 4, None), (3, 6, None), (2, 8, 4), None, (2, 7, 4), (2, 4, None), (1, 2, None), None, None, None, None)
UID = (0, 0, 0, 1, 1, 2, 2, 2, -1, -2, -3, -4)
TRAJ_UID = (0, 0, 1, 0, 1, 0, 0, 1, -1, -2, -3, -4)
LEAF = (0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0)
WIDTH = max(LENGTHS) - 1
NEAR_OLD = ("old_log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs")  # log-probs of models like the one in training


@dataclass(frozen=True)
class Drawn:
    """All fields of the twelve rows, float64 where they are floats. forward: what the model yields."""

    rows: dict[str, Tensor]
    forward: dict[str, Tensor]
    made: dict[tuple[str, torch.dtype], tuple[dict[str, Tensor], dict[str, Tensor]]] = field(default_factory=dict)

    def keys(self, index: tuple[int, ...]) -> dict[str, Tensor]:
        """What rows are counted by."""
        return {name: self.rows[name][list(index)] for name in ("response_mask", "is_pad", "uid", "traj_uid")}

    def take(self, index: tuple[int, ...], junk: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Rows and forward of these rows, as wide as the longest. junk outside the mask: "", "numbers", "nan", or "mixed", a row each."""
        chosen, width = torch.tensor(index), max(LENGTHS[i] for i in index) - 1
        rows, forward = self._tables(junk, dtype)
        return _cut(rows, chosen, width), _cut(forward, chosen, width)

    def _tables(self, junk: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All twelve rows."""
        if (junk, dtype) not in self.made:
            self.made[junk, dtype] = tuple(  # type: ignore[assignment]  # of two
                {name: self._outside(name, value, junk, worst, dtype) for name, value in fields.items()}
                for fields, worst in ((self.rows, float("nan")), (self.forward, None))
            )
        return self.made[junk, dtype]

    def _outside(self, name: str, value: Tensor, junk: str, worst: float | None, dtype: torch.dtype) -> Tensor:
        if not value.is_floating_point():
            return value
        if value.ndim == 2:
            value = value.clone()
            for row, outside in enumerate(~self.rows["response_mask"]):
                kind = ("numbers", "nan", "")[row % 3] if junk == "mixed" else junk
                if kind:
                    large = 25.0 * (1 + row % 3) * (-1) ** len(name)
                    value[row, outside] = large if kind == "numbers" or worst is None else worst
        return value.to(dtype)


def _cut(fields: dict[str, Tensor], chosen: Tensor, width: int) -> dict[str, Tensor]:
    return {name: value[chosen, :width] if value.ndim == 2 else value[chosen] for name, value in fields.items()}


def draw(loss: Loss[Any, Any], *, seed: int) -> Drawn:
    """Rows for this loss: the fields of rlflow's own losses, and those that its records declare.

    Raises UsageError for a declared field that is neither [B] nor [B, R] of numbers or flags.
    """
    generator = torch.Generator().manual_seed(seed)
    total = len(LENGTHS)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = _mask()
    log_probs = -1.2 + 0.4 * normal(total, WIDTH)
    wide = 1 + 2.5 * (normal(total, WIDTH) > 1.2)  # some ratios are far from 1: bounds are reached
    rows = {name: log_probs + 0.2 * wide * normal(total, WIDTH) for name in NEAR_OLD}
    rows |= {"advantages": normal(total, WIDTH), "returns": normal(total, WIDTH), "values": 0.5 * normal(total, WIDTH)}
    forward = {"log_probs": log_probs, "entropy": 1.0 + 0.2 * normal(total, WIDTH), "values": 0.5 * normal(total, WIDTH)}
    for fields, declared in ((rows, reads_of(loss)), (forward, forward_of(loss))):
        for name, spec in declared.items():
            if name not in fields and name not in ("response_mask", "is_pad", "uid", "traj_uid", "leaf"):
                fields[name] = _of_spec(name, spec, loss, normal)
    rows = {name: value.where(mask, 0.0) if value.ndim == 2 and value.is_floating_point() else value for name, value in rows.items()}
    own = {"uid": UID, "traj_uid": TRAJ_UID, "leaf": LEAF, "is_pad": [i in PADS for i in range(total)]}
    return Drawn({**rows, "response_mask": mask, **{name: torch.tensor(value) for name, value in own.items()}}, forward)


def _mask() -> Tensor:
    mask = torch.zeros(len(LENGTHS), WIDTH, dtype=torch.bool)
    for row, span in enumerate(TRAINED):
        if span is not None:
            start, stop, gap = span
            mask[row, start:stop] = True
            if gap is not None:
                mask[row, gap] = False
    return mask


def _of_spec(name: str, spec: Spec, loss: Loss[Any, Any], normal: Any) -> Tensor:
    shape = (len(LENGTHS), WIDTH)[: len(spec.shape)]
    if not 1 <= len(spec.shape) <= 2 or spec.dtype == "text":
        raise UsageError(f"{type(loss).__name__} reads `{name}`, {spec}: rows are drawn of numbers and flags, [B] or [B, R]")
    value: Tensor = normal(*shape)
    return value > 0 if spec.dtype == "flag" else value if spec.dtype in ("f32", "f16", "bf16") else (10 * value).long()
