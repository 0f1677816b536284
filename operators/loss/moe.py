"""Auxiliary losses of a mixture of experts: they are about where tokens are routed, not about what is said.

    load_balancing    E · Σ_e f_e P_e      tokens spread over the experts           depends on the cut: split_invariant = False
    router_z_loss     (log Σ_e e^x_e)²     the router's logits x stay small

Both read the router's logits in the training forward, `forward.router_logits`, of the trained tokens: those of a prompt or of an
environment's reply count here as little as in any other loss. A model without experts yields none, which is an error.
"""

from __future__ import annotations

from rlflow import Aggregated, Tensor
from rlflow.errors import UsageError

from ..options import finite
from ..records import ModelRows, PolicyForward
from .terms import inside

__all__ = ["load_balancing", "router_z_loss"]


class load_balancing(Aggregated[PolicyForward, ModelRows]):
    """coef · E · Σ_e f_e P_e, mean over layers: f_e the share of tokens with expert e among their top k, P_e the mean probability of e.

    Fedus et al. 2022, Switch Transformers (arXiv:2101.03961), eq. 4 to 6; Lepikhin et al. 2020, GShard (arXiv:2006.16668). It is k where
    the load is even, more where it is not. f has no gradient, P has. Each layer has a load of its own: transformers adds up the layers
    first, so that one may make up for the other.
    f and P are those of a micro-batch, as in the papers: a product of two means, so its value depends on the cut. Over micro-batches it
    is their mean, weighed as `aggregate` says.

        E = 2, k = 1, two tokens with probabilities (0.9, 0.1), (0.6, 0.4): f = (1, 0), P = (0.75, 0.25): 2 · 0.75 = 1.5
    """

    split_invariant = False
    depends_on_cut = "the share of tokens that each expert gets is taken a micro-batch"
    coef: float

    def __post_init__(self) -> None:
        finite("load_balancing", coef=self.coef)

    @property
    def active(self) -> bool:
        return self.coef != 0

    def __call__(self, forward: PolicyForward, rows: ModelRows) -> Tensor:
        whole = self._unevenness(forward, rows)
        return self.aggregated(self.coef * whole.expand(rows.response_mask.shape), rows)

    def metrics(self, forward: PolicyForward, rows: ModelRows) -> dict[str, Tensor]:
        """unevenness: E · Σ_e f_e P_e, without coef."""
        return {"unevenness": inside(self._unevenness(forward, rows).detach().expand(rows.response_mask.shape), rows.response_mask)}

    def _unevenness(self, forward: PolicyForward, rows: ModelRows) -> Tensor:
        """[]: the mean over layers."""
        layers = [_imbalance(x, rows.response_mask.bool(), forward.experts_per_token) for x in _router_logits(self, forward)]
        return sum(layers[1:], layers[0]) / len(layers)


class router_z_loss(Aggregated[PolicyForward, ModelRows]):
    """coef · (log Σ_e e^x_e)² a token, mean over layers; x: the router's logits.

    Zoph et al. 2022, ST-MoE (arXiv:2202.08906), eq. 5, whose coef is 0.001. A mean over tokens of a term a token: no cut changes it.

        two experts, x = (0, 0): (log 2)² = 0.4805, gradient 2 · 0.6931 · (0.5, 0.5)
    """

    coef: float

    def __post_init__(self) -> None:
        finite("router_z_loss", coef=self.coef)

    @property
    def active(self) -> bool:
        return self.coef != 0

    def __call__(self, forward: PolicyForward, rows: ModelRows) -> Tensor:
        return self.aggregated(self.coef * self._z(forward, rows), rows)

    def metrics(self, forward: PolicyForward, rows: ModelRows) -> dict[str, Tensor]:
        """router_z: the term without coef."""
        return {"router_z": self._z(forward, rows).detach()}

    def _z(self, forward: PolicyForward, rows: ModelRows) -> Tensor:
        mask = rows.response_mask.bool()
        layers = [inside(x, mask.unsqueeze(-1)).logsumexp(-1) ** 2 for x in _router_logits(self, forward)]
        return inside(sum(layers[1:], layers[0]) / len(layers), mask)


def _imbalance(logits: Tensor, mask: Tensor, top_k: int) -> Tensor:
    """E · Σ_e f_e P_e of one layer. logits: tokens and [E]; mask: tokens. 0 where no token is trained."""
    probabilities = inside(logits, mask.unsqueeze(-1)).softmax(-1)
    chosen = probabilities.detach().topk(top_k, dim=-1).indices
    routed = probabilities.new_zeros(probabilities.shape).scatter(-1, chosen, 1.0)
    tokens = mask.sum().clamp(min=1)
    share, mean = (inside(x, mask.unsqueeze(-1)).flatten(0, -2).sum(0) / tokens for x in (routed, probabilities))
    return (share * mean).sum() * logits.shape[-1]


def _router_logits(loss: object, forward: PolicyForward) -> tuple[Tensor, ...]:
    if not forward.router_logits:
        raise UsageError(
            f"{type(loss).__name__} reads the router's logits, and the forward has none: the model is no mixture of experts "
            "(its config names no num_experts_per_tok), so leave this loss out"
        )
    return forward.router_logits
