"""Rows of algorithms.py: advantage estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from algorithms import Batch, Call, Row

from operators import advantage

REWARDS, MASK = "token_level_rewards", "response_mask"
VERL = {
    "grpo": "compute_grpo_outcome_advantage",
    "grpo_vectorized": "compute_grpo_vectorized_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "rloo_vectorized": "compute_rloo_vectorized_outcome_advantage",
}


def ours(fn: Callable[..., Any], *names: str, **options: Any) -> dict[str, Callable[[Batch], Call]]:
    """Called with fields of these names, in both layouts."""

    def padded(batch: Batch) -> Call:
        given = {name: batch[name] for name in names}
        return lambda: _advantages(fn(**given, **options))

    def ragged(batch: Batch) -> Call:
        given = {name: batch[name] if name == "uid" else batch.column(name) for name in names}
        return lambda: _advantages(fn(**given, **options))

    return {"padded": padded, "ragged": ragged}


def _advantages(result: Any) -> Any:
    """Both fields are made; one is compared."""
    return getattr(result, "advantages", result)


def grouped(*names: str) -> Callable[[], Mapping[str, Callable[[Batch], Call]]]:
    """verl's group estimators, which find a group by its uid as text."""

    def peers() -> Mapping[str, Callable[[Batch], Call]]:
        from verl.trainer.ppo import core_algos

        def of(fn: Callable[..., Any]) -> Callable[[Batch], Call]:
            def make(batch: Batch) -> Call:
                mask, index = batch.peer_mask(), np.array([f"uid-{u}" for u in batch.uid.tolist()], object)
                return lambda: fn(batch[REWARDS], mask, index)[0]

            return make

        return {f"verl {name}": of(getattr(core_algos, VERL[name])) for name in names}

    return peers


def gae_peers() -> Mapping[str, Callable[[Batch], Call]]:
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    def make(batch: Batch) -> Call:
        mask = batch.peer_mask()
        return lambda: compute_gae_advantage_return(batch[REWARDS], batch["values"], mask, 0.99, 0.95)[0]

    return {"verl gae": make}


def reinforce_plus_plus_peers() -> Mapping[str, Callable[[Batch], Call]]:
    from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage as compute

    def make(batch: Batch) -> Call:
        mask, config = batch.peer_mask(), SimpleNamespace(gamma=1.0)
        return lambda: compute(batch[REWARDS], mask, config=config)[0]

    return {"verl reinforce_plus_plus": make}


def whiten_peers() -> Mapping[str, Callable[[Batch], Call]]:
    from verl.utils.torch_functional import masked_whiten

    def make(batch: Batch) -> Call:
        mask = batch.peer_mask()
        return lambda: masked_whiten(batch["advantages"], mask)

    return {"verl masked_whiten": make}


ROWS = [
    Row("grpo", ours(advantage.grpo, REWARDS, MASK, "uid"), grouped("grpo", "grpo_vectorized")),
    Row("rloo", ours(advantage.rloo, REWARDS, MASK, "uid"), grouped("rloo", "rloo_vectorized")),
    Row("gae", ours(advantage.gae, REWARDS, "values", MASK, gamma=0.99, lam=0.95), gae_peers),
    Row("reinforce_plus_plus", ours(advantage.reinforce_plus_plus, REWARDS, MASK), reinforce_plus_plus_peers),
    Row("whiten", ours(advantage.whiten, "advantages", MASK), whiten_peers),
]
