"""What the tests of P17 on the real engine run: `python row_plan_scenarios.py FOLDER RANK SIZE DP`, one process a rank.

Every shipped loss, on rows that `pad`, `rebalance`, `shard` and `micro_pack` cut for this rank; the gradient after the sum over ranks, and
the parameters after a batch of four mini-batches, go to FOLDER/dpDP.RANK.safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import operators.loss
from operators.records import CovarianceRows, KlRows, ModelRows, TeacherRows, ToprRows, ValueRows
from operators.rows import micro_pack, pad, rebalance, shard
from rlflow import Loss
from rlflow.engines.train.denominators import whole_counts
from rlflow.engines.train.terms import loss_names
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.update import Updater

torch.set_num_threads(1)
OPTIONS: dict[str, dict[str, Any]] = {
    "clip_cov": {"cov_ratio": 0.2, "cov_low": -10.0, "cov_high": 10.0},
    "entropy_bonus": {"coef": 0.1},
    "kl_cov": {"cov_ratio": 0.2},
    "kl_penalty": {"beta": 0.1},
}
OF_EXPERTS = {"load_balancing", "router_z_loss"}  # this model is none
NAMES = sorted(
    name for name in operators.loss.__all__
    if name not in OF_EXPERTS and isinstance(one := getattr(operators.loss, name), type) and issubclass(one, Loss)
)  # fmt: skip
FLOAT32 = ("ppo_clip", "gspo", "clip_cov", "value_clip")
AVERAGES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LENGTHS = (6, 9, 4, 8, 5, 7, 9, 3, 6, 4)


class AllRows(ModelRows, CovarianceRows, ToprRows, KlRows, TeacherRows, ValueRows):
    """Whatever a loss reads."""


def all_rows(dtype: torch.dtype = torch.float64) -> AllRows:
    """Ten rows: trees, a gap, one without a trained token; no padding rows, `pad` adds them."""
    draw, count, width = torch.Generator().manual_seed(3), len(LENGTHS), max(LENGTHS)
    steps = torch.arange(width)
    inside = steps < torch.tensor(LENGTHS)[:, None]
    mask = (inside & (steps >= 2))[:, 1:].clone()
    mask[0, 3], mask[4] = False, False
    numbers = torch.randn(7, count, width - 1, generator=draw, dtype=torch.float64).to(dtype)
    near, leaf = -2.7 + 0.3 * numbers, torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 1, 0])
    return AllRows(
        input_ids=torch.randint(3, 16, (count, width), generator=draw) * inside, position_ids=steps.expand(count, width) * inside,
        response_mask=mask, is_pad=torch.zeros(count, dtype=torch.bool),
        uid=torch.arange(count) // 3, traj_uid=torch.tensor([0, 0, 1, 0, 1, 1, 0, 1, 1, 0]), leaf=leaf,
        old_log_probs=near[0], rollout_log_probs=near[1], ref_log_probs=near[2], teacher_log_probs=near[3],
        advantages=numbers[4], values=0.1 * numbers[5], returns=numbers[6],
    )  # fmt: skip


def cut(rows: AllRows, *, rank: int, dp: int, mini_batches: int, max_tokens: int) -> Any:
    """The micro-batches of a rank, by the operators of a pipeline."""
    worker: Any = SimpleNamespace(dp_size=dp, site=SimpleNamespace(rank=rank))
    padded = pad(rows, multiple=dp * mini_batches)
    dealt = rebalance(padded, pieces=4 * dp, mini_batches=mini_batches)
    return micro_pack(shard(dealt, on=worker, mini_batches=mini_batches), max_tokens=max_tokens)


class Kept:
    """An optimizer that keeps the gradient and steps nothing."""

    param_groups: tuple[dict[str, float], ...] = ()

    def __init__(self, named: dict[str, Tensor]) -> None:
        self._named, self.gradients = named, dict[str, Tensor]()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._named.values():
            parameter.grad = None

    def step(self) -> None:
        self.gradients = {name: p.grad.clone() for name, p in self._named.items() if p.grad is not None}


def gradient(engine: TorchEngine, loss: Any, rows: AllRows, *, max_tokens: int) -> dict[str, Tensor]:
    ranks = engine._ranks
    objective = cut(rows, rank=ranks.rank, dp=ranks.size, mini_batches=1, max_tokens=max_tokens).loss(loss)
    kept = Kept(dict(engine._model.named_parameters()))
    updater = Updater(engine._parameters(), kept, engine._forward, ranks, grad_clip=0, packed=engine._packed)  # type: ignore[arg-type]
    (counts,) = whole_counts(objective, [loss], ranks)
    updater.step(objective.parts[0], loss_names([loss]), counts, lr=1.0, place="test")
    return kept.gradients


def run(folder: Path, rank: int, dp: int, *, max_tokens: int, packed: bool) -> dict[str, Tensor]:
    """What is to be the same for every dp, budget and layout. Engines come one after the other: a process is in one group at a time."""
    found: dict[str, Tensor] = {}
    for kind, names in (("critic", ["value_clip"]), ("policy", [name for name in NAMES if name != "value_clip"])):
        for dtype in ("float64", "float32"):
            engine = engine_of(folder, f"{kind}.{dtype}", rank, dp, kind=kind, dtype=dtype, packed=packed)
            rows = all_rows(getattr(torch, dtype))
            for name in names if dtype == "float64" else [name for name in names if name in FLOAT32]:
                for average in AVERAGES if dtype == "float64" else AVERAGES[:1]:
                    loss = getattr(operators.loss, name)(**OPTIONS.get(name, {}), aggregate=average, constant=12.0, row_weight="trajectory")
                    made = gradient(engine, loss, rows, max_tokens=max_tokens)
                    found[f"{dtype}/{name}/{average}"] = torch.cat([made[key].flatten() for key in sorted(made)])
            engine.close()
    return {**found, **four_mini_batches(folder, rank, dp, max_tokens=max_tokens, packed=packed)}


def four_mini_batches(folder: Path, rank: int, dp: int, *, max_tokens: int, packed: bool) -> dict[str, Tensor]:
    engine = engine_of(folder, "four", rank, dp, dtype="float64", packed=packed, lr=1e-2)
    losses = (operators.loss.ppo_clip(0.2, 0.28), operators.loss.kl_penalty(0.1), operators.loss.kl_cov(cov_ratio=0.2))
    engine.train(cut(all_rows(), rank=rank, dp=dp, mini_batches=4, max_tokens=max_tokens).loss(*losses))
    engine.close()
    return {"parameters": torch.cat([tensor.flatten() for _, tensor in engine.named_tensors()]).clone()}


def engine_of(folder: Path, name: str, rank: int, dp: int, **options: Any) -> TorchEngine:
    return TorchEngine(folder / "model", rank=rank, dp_size=dp, rendezvous=f"file://{folder}/meet.{dp}.{name}", timeout_s=120.0, **options)


def main(folder: Path, rank: int, dp: int) -> None:
    made = run if dp == 2 else four_mini_batches
    save_file(made(folder, rank, dp, max_tokens=24, packed=dp == 2), folder / f"dp{dp}.{rank}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
