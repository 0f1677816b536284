"""An engine whose schedule divides multiplies the factor back: protocol.py, "Schedules that divide too"."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from operators.loss import ppo_clip
from rlflow.engines.train.denominators import Counts
from rlflow.engines.train.terms import loss_names, micro_loss
from rlflow.engines.train.view import LossRows

# Two ranks. Rank 0 runs one micro-batch of two rows, rank 1 three of one row. On policy a token's gradient is -A / tokens.
ADVANTAGES = [[[[1.0, 2.0], [3.0, 0.0]]], [[[4.0, 5.0]], [[6.0, 0.0]], [[7.0, 8.0]]]]
MASKS = [[[[1, 1], [1, 0]]], [[[1, 1]], [[1, 0]], [[1, 1]]]]
TOKENS, ROWS = 8, 5


def micro(advantages: list[list[float]], mask: list[list[int]]) -> Any:
    values = torch.tensor(advantages, dtype=torch.float64)
    zeros = torch.zeros_like(values)
    return SimpleNamespace(
        advantages=values, response_mask=torch.tensor(mask).bool(), is_pad=torch.zeros(len(mask)).bool(), old_log_probs=zeros
    )  # fmt: skip


def gradients(aggregate: Any, schedule: str) -> list[list[float]]:
    """By rank, of all its tokens; summed (or averaged) over ranks they are one gradient, since no token is on two."""
    losses, counts = loss_names([ppo_clip(aggregate=aggregate)]), Counts({"tokens": TOKENS, "rows": ROWS})
    found: list[list[float]] = []
    for of_rank, masks in zip(ADVANTAGES, MASKS, strict=True):
        weights: list[Tensor] = []
        for advantages, mask in zip(of_rank, masks, strict=True):
            rows = micro(advantages, mask)
            forward = SimpleNamespace(log_probs=torch.zeros_like(rows.advantages, requires_grad=True))
            share, _ = micro_loss(forward, LossRows(rows, forward, {}), losses, counts)
            if schedule == "divides":
                share = share * len(of_rank) * len(ADVANTAGES)  # num_microbatches of this rank * dp_size (cp_size is 1)
                share = share / len(of_rank)  # the schedule
            share.backward()  # type: ignore[no-untyped-call]
            weights.append(forward.log_probs.grad.flatten())
        found.append((torch.cat(weights) / (len(ADVANTAGES) if schedule == "divides" else 1)).tolist())  # the mean over dp
    return found


@pytest.mark.parametrize(("aggregate", "count"), [("token-mean", 8), ("seq-mean-token-sum", 5)])
@pytest.mark.parametrize("schedule", ["sums", "divides"])
def test_L6_a_schedule_that_divides_by_micro_batches_makes_the_same_gradient(aggregate: str, count: int, schedule: str) -> None:
    expected = [[-1 / count, -2 / count, -3 / count, 0.0], [-4 / count, -5 / count, -6 / count, 0.0, -7 / count, -8 / count]]
    found = gradients(aggregate, schedule)
    assert [value for rank in found for value in rank] == pytest.approx([value for rank in expected for value in rank])
