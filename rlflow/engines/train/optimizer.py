"""AdamW and its moments by parameter name: what a checkpoint holds instead of torch's pickled state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlflow.errors import EngineError

__all__ = ["load_moments", "make_adamw", "moments"]

MOMENTS = ("exp_avg", "exp_avg_sq")


def make_adamw(parameters: Sequence[Tensor], *, betas: tuple[float, float], eps: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) over float32 or float64 parameters; the rate is set before each step."""
    return torch.optim.AdamW(parameters, lr=0.0, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, foreach=True)


def moments(named: Mapping[str, Tensor], optimizer: torch.optim.AdamW | None) -> dict[str, Tensor]:
    """`exp_avg.NAME` and `exp_avg_sq.NAME` of every parameter; empty before the first step."""
    if optimizer is None:
        return {}
    return {f"{kind}.{name}": optimizer.state[p][kind] for name, p in named.items() for kind in MOMENTS if p in optimizer.state}


def load_moments(named: Mapping[str, Tensor], optimizer: torch.optim.AdamW, saved: Mapping[str, Tensor], *, steps: int) -> None:
    """Give the optimizer the moments of `steps` steps. Raises EngineError naming what the checkpoint lacks or shapes otherwise."""
    wanted = {f"{kind}.{name}": p for name, p in named.items() if p.requires_grad for kind in MOMENTS}
    wrong = [key for key, p in wanted.items() if key not in saved or saved[key].shape != p.shape]
    if wrong:
        raise EngineError(f"the checkpoint's optimizer has no fitting {', '.join(wrong[:5])} ({len(wrong)} in all): it is of another model")
    for name, p in named.items():
        if p.requires_grad:
            restored = {kind: saved[f"{kind}.{name}"].to(device=p.device, dtype=p.dtype) for kind in MOMENTS}
            optimizer.state[p] = {"step": torch.tensor(float(steps), dtype=torch.float32), **restored}
