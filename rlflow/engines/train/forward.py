"""From token ids to what a loss reads, at next-token positions.

    input_ids   [b, S] ──▶ model ──▶ logits [b, S, V] ── / temperature ──▶ [:, -R-1:-1] ──▶ log_probs, entropy [b, R]
                      └──▶ routers of experts [b, S, E] a layer ─────────▶ [:, -R-1:-1] ──▶ router_logits
    input_ids   [b, S] ──▶ critic ─▶ values [b, S] ──────────────────────▶ [:, -R-1:-1] ──▶ values [b, R]

Position t predicts token t + 1: output t meets label `input_ids[:, t + 1]`. With R = S - 1 the slice is positions 0 .. S - 2.
Padding is on the right, so causality alone hides it from every token: attention needs no mask. Pads yield numbers that are masked later.
Packed rows (packed.py) are one sequence [1, M]: the outputs are those of each row but its last, [1, N].
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .packed import PackedRows
from .protocol import RowsLike

__all__ = [
    "CriticOutput",
    "ModelOutput",
    "PolicyOutput",
    "critic_forward",
    "experts_per_token",
    "policy_forward",
    "predicting",
    "run_model",
]


def predicting(outputs: Tensor, positions: int) -> Tensor:
    """The `positions` outputs that predict the last `positions` tokens: `outputs[:, -R-1:-1]`.

    outputs: [b, S, ...]. With S = 7 (a prompt of 3, a response of 4) and R = 4: rows 2..5, as row 2 predicts token 3.
    Counted from the front, as `[-0:]` would be everything.
    """
    length = outputs.shape[1]
    return outputs[:, length - positions - 1 : length - 1]


class PolicyOutput:
    """What policy losses read: `log_probs` [b, R] and `entropy` [b, R], both with gradient, in nats.

    The entropy is computed when it is first read: a loss that reads it pays for its graph, the others do not.
    router_logits: [b, R, E] of each layer of experts, with gradient; () of a model without. experts_per_token: how many each token goes to.
    """

    def __init__(self, logits: Tensor, labels: Tensor, router_logits: tuple[Tensor, ...] = (), experts_per_token: int = 0) -> None:
        """logits: float [b, R, V], already divided by the temperature; labels: i64[b, R], the tokens predicted."""
        self.router_logits, self.experts_per_token = router_logits, experts_per_token
        self._logits = logits
        self._log_normaliser = logits.logsumexp(-1)
        self.log_probs = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - self._log_normaliser

    @cached_property
    def entropy(self) -> Tensor:
        """log Z - Σ p·logit."""
        probabilities = (self._logits - self._log_normaliser.unsqueeze(-1)).exp()
        return self._log_normaliser - (probabilities * self._logits).sum(-1)

    def measured_entropy(self) -> Tensor:
        """The entropy for a metric: never adds to the graph."""
        if "entropy" in self.__dict__:
            return self.entropy.detach()
        with torch.no_grad():
            probabilities = (self._logits - self._log_normaliser.unsqueeze(-1)).exp_()
            return self._log_normaliser - probabilities.mul_(self._logits).sum(-1)


class CriticOutput:
    """What value losses read: `values` [b, R], with gradient; at t the value before token t + 1."""

    def __init__(self, values: Tensor) -> None:
        self.values = values


def policy_forward(model: Any, rows: RowsLike, *, temperature: float, autocast: torch.dtype | None = None) -> PolicyOutput:
    """Log-probabilities of every token but the first, at `temperature`."""
    output = run_model(model, rows.input_ids, rows.position_ids, autocast=autocast, packed=isinstance(rows, PackedRows))
    logits = _of_tokens(output.logits, rows)
    routers = tuple(_of_tokens(x.reshape(*rows.input_ids.shape, -1), rows) for x in output.router_logits)
    labels = rows.input_ids[:, rows.predicting + 1] if isinstance(rows, PackedRows) else rows.input_ids[:, 1:]
    return PolicyOutput(logits if temperature == 1.0 else logits / temperature, labels, routers, experts_per_token(model))


def critic_forward(model: Any, rows: RowsLike, *, autocast: torch.dtype | None = None) -> CriticOutput:
    """The value of the state after each token but the last."""
    output = run_model(model, rows.input_ids, rows.position_ids, autocast=autocast, packed=isinstance(rows, PackedRows))
    return CriticOutput(_of_tokens(output.logits, rows).squeeze(-1))


def _of_tokens(outputs: Tensor, rows: RowsLike) -> Tensor:
    """The outputs that predict a token of their row: [b, S, ...] → [b, R, ...], packed [1, M, ...] → [1, N, ...]."""
    return outputs[:, rows.predicting] if isinstance(rows, PackedRows) else predicting(outputs, outputs.shape[1] - 1)


def experts_per_token(model: Any) -> int:
    """To how many experts each token goes; 0 for a model that is no mixture of experts."""
    return int(getattr(model.config, "num_experts_per_tok", None) or 0)


class ModelOutput(NamedTuple):
    """logits: [b, S, V]; router_logits: [b · S, E] of each layer of experts, where there is a gradient for them. At least float32."""

    logits: Tensor
    router_logits: tuple[Tensor, ...]


def run_model(
    model: Any, input_ids: Tensor, position_ids: Tensor, *, autocast: torch.dtype | None = None, packed: bool = False
) -> ModelOutput:
    """One forward. Dropout is off (the model is in eval mode): a log-probability must not depend on chance.

    Without a mask transformers takes jumps of position_ids for the borders of packed rows, and builds one that is block-diagonal. That is
    what `packed` asks for; in right-padded rows the pads jump too, so their mask is all ones.
    """
    everything = None if packed else torch.ones_like(input_ids)
    routed = {"output_router_logits": True} if torch.is_grad_enabled() and experts_per_token(model) else {}
    with torch.autocast(input_ids.device.type, dtype=autocast, enabled=autocast is not None):
        output = model(input_ids=input_ids, attention_mask=everything, position_ids=position_ids, use_cache=False, **routed)
    return ModelOutput(_wide(output.logits), tuple(map(_wide, output.router_logits if routed else ())))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
