"""Rows of algorithms.py: a policy loss forward and backward, and aggregation. Both sides know the counts of the mini-batch beforehand.

padded: [B, R], as verl has them. packed: the trained tokens of all rows end to end, [1, N], as an engine may run its forward.
verl's loss makes its metrics in the same call (share of clipped tokens, twice, and KL). Ours makes them apart: "ppo_clip fwd+bwd" is the
loss alone; "ppo_clip in a step" is what the train engine does with it: loss, five metrics, and its checks of the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from algorithms import Batch, Call, Row
from torch import Tensor

from operators.loss import ppo_clip
from rlflow import Aggregated
from rlflow.engines.train.denominators import Counts
from rlflow.engines.train.terms import micro_loss
from rlflow.engines.train.view import Layout, LossRows

FIELDS = ("log_probs", "old_log_probs", "advantages")


def laid_out(batch: Batch, layout: str) -> tuple[Tensor, Any]:
    """The log-probs, a leaf, and the rows as a loss sees them."""
    mask, row = batch.mask, None
    fields = {name: batch[name] for name in FIELDS}
    if layout == "packed":
        row = torch.arange(batch.rows).repeat_interleave(mask.sum(-1))
        fields = {name: x[mask].unsqueeze(0) for name, x in fields.items()}
        mask = torch.ones_like(row, dtype=torch.bool).unsqueeze(0)
    log_probs = fields.pop("log_probs").clone().requires_grad_()
    rows = SimpleNamespace(response_mask=mask, is_pad=torch.zeros(batch.rows, dtype=torch.bool), **fields)
    return log_probs, LossRows(rows, None, {}, Layout(row=row))


def policy_loss(layout: str, *, in_a_step: bool = False) -> Callable[[Batch], Call]:
    """Its gradient. The count is 1 on both sides, so that what is compared is not tiny."""

    def make(batch: Batch) -> Call:
        log_probs, rows = laid_out(batch, layout)
        forward, count, loss = SimpleNamespace(log_probs=log_probs), 1, ppo_clip(dual_clip=3.0)

        def call() -> Tensor:
            log_probs.grad = None
            if in_a_step:
                share, _ = micro_loss(forward, rows, {"ppo_clip": loss}, Counts({"tokens": count}))
            else:
                share = loss(forward, rows).sum() / count  # type: ignore[arg-type]
            share.backward()  # type: ignore[no-untyped-call]
            assert log_probs.grad is not None
            return log_probs.grad if layout == "padded" else log_probs.grad[0]

        return call

    return make


def policy_loss_peers() -> Mapping[str, Callable[[Batch], Call]]:
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    def make(batch: Batch) -> Call:
        config = ActorConfig(strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1)
        config.global_batch_info.update(batch_num_tokens=1, global_batch_size=1)
        log_probs, mask = batch["log_probs"].clone().requires_grad_(), batch.peer_mask()

        def call() -> Tensor:
            log_probs.grad = None
            given = (batch["old_log_probs"], log_probs, batch["advantages"], mask)
            compute_policy_loss_vanilla(*given, loss_agg_mode="token-mean", config=config)[0].backward()
            assert log_probs.grad is not None
            return log_probs.grad

        return call

    return {"verl compute_policy_loss_vanilla": make}


class _given(Aggregated[Any, Any]):  # noqa: N801
    """The advantages themselves as terms."""


def aggregation(aggregate: Any, layout: str) -> Callable[[Batch], Call]:
    def make(batch: Batch) -> Call:
        _, rows = laid_out(batch, layout)
        loss = _given(aggregate=aggregate)
        count = int(batch.mask.sum()) if loss.denominator == "tokens" else batch.rows
        return lambda: loss.aggregated(rows.advantages, rows).sum() / count

    return make


def aggregation_peers(aggregate: str) -> Callable[[], Mapping[str, Callable[[Batch], Call]]]:
    def peers() -> Mapping[str, Callable[[Batch], Call]]:
        from verl.trainer.ppo.core_algos import agg_loss

        def make(batch: Batch) -> Call:
            mask, counts = batch.peer_mask(), {"batch_num_tokens": int(batch.mask.sum()), "global_batch_size": batch.rows}
            return lambda: agg_loss(batch["advantages"], mask, aggregate, **counts)

        return {"verl agg_loss": make}

    return peers


LAYOUTS = ("padded", "packed")
ROWS = [
    Row("ppo_clip fwd+bwd", {layout: policy_loss(layout) for layout in LAYOUTS}, policy_loss_peers, tolerance=1e-5),
    Row("ppo_clip in a step", {layout: policy_loss(layout, in_a_step=True) for layout in LAYOUTS}, policy_loss_peers, tolerance=1e-5),
    *(
        Row(name, {layout: aggregation(name, layout) for layout in LAYOUTS}, aggregation_peers(name))
        for name in ("token-mean", "seq-mean-token-mean")
    ),
]
