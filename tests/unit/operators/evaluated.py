"""A loss by itself, on padded rows: its terms, and what the engine makes of them. For tests of single losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from operators.fields import Advantages, Leaf, OldLogProbs, RefLogProbs, ResponseMask, Returns, RolloutLogProbs, TrajUid, Uid, Values
from operators.records import TeacherRows
from rlflow import Record
from rlflow.language.loss import has_statistic

FORWARD = ("log_probs", "entropy", "new_values")


class Rows(TeacherRows):
    """Whatever a loss may read."""

    response_mask: ResponseMask
    advantages: Advantages
    old_log_probs: OldLogProbs
    ref_log_probs: RefLogProbs
    rollout_log_probs: RolloutLogProbs
    values: Values
    returns: Returns
    uid: Uid
    traj_uid: TrajUid
    leaf: Leaf


def rows_of(**fields: Any) -> Record:
    """Rows of the given numbers, [b][R]; 0 for what is not given. float64."""
    mask = torch.as_tensor(fields["response_mask"]).bool()
    numbers = [name for name in Rows.__annotations__ if name not in ("response_mask", "uid", "traj_uid", "leaf")]
    numbers += ["teacher_log_probs"]
    filled = {name: torch.as_tensor(fields.get(name, torch.zeros(mask.shape)), dtype=torch.float64) for name in numbers}
    keys = {name: torch.as_tensor(fields.get(name, torch.zeros(len(mask)))).long() for name in ("traj_uid", "leaf")}
    uid = torch.as_tensor(fields.get("uid", range(len(mask))))
    return Rows(response_mask=mask, uid=uid, **filled, **keys)


def forward_of(**fields: Any) -> Any:
    """log_probs, entropy, values: leaves with a gradient, float64."""
    return SimpleNamespace(**{name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in fields.items()})


def terms_of(loss: Any, forward: Any, rows: Any) -> Tensor:
    """Its terms, with the statistic of these rows where it has one."""
    return loss(forward, with_statistic(loss, forward, rows))  # type: ignore[no-any-return]


def with_statistic(loss: Any, forward: Any, rows: Any) -> Any:
    """The rows, with the statistic of a loss that has one."""
    if has_statistic(loss):
        mask = rows.response_mask
        first = {name: x.detach()[mask] for name, x in loss.first_pass(forward, rows).items()}
        made = loss.statistic({name: x.double() if x.is_floating_point() else x for name, x in first.items()})
        whole = {name: torch.zeros(mask.shape, dtype=x.dtype).masked_scatter(mask, x) for name, x in made.items()}
        object.__setattr__(rows, "statistics", lambda: whole)
    return rows


def mean_of(loss: Any, terms: Tensor, rows: Any) -> Tensor:
    """What is minimised: Σ terms / count of its denominator. A row without a trained token is none."""
    mask = rows.response_mask
    return terms.sum() / (mask.sum() if loss.denominator == "tokens" else mask.any(-1).sum())
