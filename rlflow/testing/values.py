"""A loss on whole right-padded tensors: one micro-batch that is the mini-batch, on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rlflow.engines.train.filled import lacking
from rlflow.engines.train.statistics import measured, statistics_of, word
from rlflow.engines.train.terms import loss_names, micro_loss
from rlflow.engines.train.view import LossRows
from rlflow.errors import UsageError
from rlflow.language.loss import Loss, has_statistic

from .given import Given, alone, counts_of, refuse_no_loss, required

__all__ = ["loss_grad", "loss_value"]

Keys = Tensor | Sequence[int] | Sequence[str]
Wrt = Literal["log_probs", "entropy", "values"]


def loss_value(
    loss: Loss[Any, Any],
    *,
    log_probs: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    advantages: Tensor | None = None,
    response_mask: Tensor,
    rollout_log_probs: Tensor | None = None,
    ref_log_probs: Tensor | None = None,
    teacher_log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
    values: Tensor | None = None,
    old_values: Tensor | None = None,
    returns: Tensor | None = None,
    uid: Keys | None = None,
    traj_uid: Keys | None = None,
) -> float:
    """What a train engine reports as the loss of a mini-batch of these rows: Σ weight · terms / count of its denominator.

    log_probs, entropy [B, R], nats, and values [B, R]: of the forward, the weights in training. The others: fields of the rows, [B, R]
    float32 or float64; old_values is what a critic's rows call `values`. response_mask [B, R]: bool, or numbers, not 0 where trained.
    uid, traj_uid [B], numbers or text: by default every row is a group, and a trajectory, of its own.
    Give what the loss reads. One that takes a field from the forward where the rows have none (`Loss.from_forward`) takes it here
    too: ppo_clip without old_log_probs is on policy. A loss that is not active is 0, and so is one of rows without a trained token.

    Raises UsageError for an argument that the loss reads and that is not there, or of another shape; EngineError as an engine does.

        log_probs = old_log_probs = [[0, 0, 0], [0, 0, 0]], advantages [[1, 2, 9], [4, 9, 9]], response_mask [[1, 1, 0], [1, 0, 0]]:
        ppo_clip() -(1 + 2 + 4) / 3 = -2.3333          ppo_clip(aggregate="seq-mean-token-mean") -(3 / 2 + 4) / 2 = -2.75
    """
    forward = required(log_probs=log_probs, entropy=entropy, values=values)
    rows = required(
        old_log_probs=old_log_probs, advantages=advantages, rollout_log_probs=rollout_log_probs, ref_log_probs=ref_log_probs,
        teacher_log_probs=teacher_log_probs, old_values=old_values, returns=returns,
    )  # fmt: skip
    share = _share(loss, forward, rows, response_mask, uid, traj_uid)
    return 0.0 if share is None else float(share.detach())


def loss_grad(
    loss: Loss[Any, Any],
    *,
    wrt: Wrt = "log_probs",
    log_probs: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    advantages: Tensor | None = None,
    response_mask: Tensor,
    rollout_log_probs: Tensor | None = None,
    ref_log_probs: Tensor | None = None,
    teacher_log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
    values: Tensor | None = None,
    old_values: Tensor | None = None,
    returns: Tensor | None = None,
    uid: Keys | None = None,
    traj_uid: Keys | None = None,
) -> Tensor:
    """d loss_value / d one output of the forward: [B, R], in its dtype, 0 where the loss does not depend on it. The rest as `loss_value`.

    wrt: "log_probs", "entropy" or "values", which must be given. Raises UsageError for another.

        ppo_clip() of the example there: [[-1, -2, 0], [-4, 0, 0]] / 3
    """
    forward = required(log_probs=log_probs, entropy=entropy, values=values)
    if wrt not in forward:
        raise UsageError(f"wrt is {wrt!r}; it is one of the forward's outputs that are given: {', '.join(forward) or 'none is'}")
    rows = required(
        old_log_probs=old_log_probs, advantages=advantages, rollout_log_probs=rollout_log_probs, ref_log_probs=ref_log_probs,
        teacher_log_probs=teacher_log_probs, old_values=old_values, returns=returns,
    )  # fmt: skip
    forward = {name: value.detach().clone().requires_grad_() for name, value in forward.items()}
    share = _share(loss, forward, rows, response_mask, uid, traj_uid)
    if share is None or not share.requires_grad:
        return torch.zeros_like(forward[wrt])
    (gradient,) = torch.autograd.grad(share, [forward[wrt]], allow_unused=True)
    return torch.zeros_like(forward[wrt]) if gradient is None else gradient


def _share(
    loss: Loss[Any, Any], forward: dict[str, Tensor], rows: dict[str, Tensor], mask: Tensor, uid: Keys | None, traj_uid: Keys | None
) -> Tensor | None:
    """The loss with its graph; None where nothing is trained."""
    refuse_no_loss(loss)
    if not loss.active:
        return None
    seen = _forward(forward, mask)
    table = _rows(rows, mask, uid, traj_uid)
    counts, objective = counts_of(loss, [[table]])
    if counts["tokens"] == 0:
        return None
    named, view = loss_names([loss]), LossRows(table, seen, lacking(objective, [loss], updates=1))
    found: dict[str, dict[str, Tensor]] = {}
    if has_statistic(loss):
        mine = [measured(seen, view, named)]
        found = statistics_of(named, mine, [word(mine)], alone(), "the first pass").of(0, seen, view)
    return micro_loss(seen, view, named, counts, found)[0]


def _forward(forward: dict[str, Tensor], mask: Tensor) -> Given:
    made = {name: _checked(name, value, mask) for name, value in forward.items()}
    made = {name: value if value.requires_grad else value.detach().requires_grad_() for name, value in made.items()}
    return Given("forward", "give loss_value, or loss_grad, {name}=...", made)


def _rows(rows: dict[str, Tensor], mask: Tensor, uid: Keys | None, traj_uid: Keys | None) -> Given:
    made = {name: _checked(name, value, mask) for name, value in rows.items()}
    own = torch.arange(mask.shape[0], device=mask.device)
    made |= {"response_mask": mask.bool(), "is_pad": torch.zeros_like(own, dtype=torch.bool)}
    made |= {"uid": _keys("uid", uid, own), "traj_uid": _keys("traj_uid", traj_uid, own)}
    made["leaf"] = _leaves(made["uid"], made["traj_uid"])
    if "old_values" in made:
        made["values"] = made.pop("old_values")
    return Given("rows", "give loss_value, or loss_grad, {name}=... (what a critic's rows call `values` is old_values=...)", made)


def _checked(name: str, value: Tensor, mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise UsageError("response_mask is a tensor [B, R]: rows, next-token positions")
    if value.shape != mask.shape:
        raise UsageError(f"{name} is {list(value.shape)}, response_mask {list(mask.shape)}: both are [B, R], right-padded")
    if not value.is_floating_point():
        raise UsageError(f"{name} is of {value.dtype}: give float32 or float64")
    return value


def _keys(name: str, given: Keys | None, own: Tensor) -> Tensor:
    if given is None:
        return own
    values = given.tolist() if isinstance(given, Tensor) else list(given)
    if len(values) != len(own):
        raise UsageError(f"{name} has {len(values)} entries for {len(own)} rows")
    number = {key: i for i, key in enumerate(dict.fromkeys(values))}
    whole = all(isinstance(key, int) for key in number)
    return torch.tensor([key if whole else number[key] for key in values], dtype=torch.int64, device=own.device)


def _leaves(uid: Tensor, traj_uid: Tensor) -> Tensor:
    """Which row of its trajectory each is, from 0."""
    seen: dict[tuple[int, int], int] = {}
    found: list[int] = []
    for key in zip(uid.tolist(), traj_uid.tolist(), strict=True):
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return torch.tensor(found, dtype=torch.int64, device=uid.device)
