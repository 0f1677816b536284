"""What the data-parallel tests run: the same functions in one process (dp = 1) and, as `python dp_scenarios.py FOLDER RANK`, in two.

Each scenario makes its engine, does its calls and returns JSON data or tensors; two processes write theirs to FOLDER/NAME.RANK.*.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from operators.loss import kl_penalty, ppo_clip
from rlflow.engines.train.denominators import whole_counts
from rlflow.engines.train.terms import loss_names
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.update import Updater
from rlflow.errors import EngineError, RlflowError

torch.set_num_threads(1)
LOSSES = (ppo_clip(0.2, 0.28), kl_penalty(0.1))
STUCK_S = 4.0  # the bound in the scenario of the stuck rank, long enough to join on a busy machine


@dataclass(frozen=True)
class Rows:
    input_ids: Tensor
    position_ids: Tensor
    response_mask: Tensor
    is_pad: Tensor
    uid: Tensor
    traj_uid: Tensor
    old_log_probs: Tensor
    ref_log_probs: Tensor
    advantages: Tensor

    def take(self, *rows: int) -> Rows:
        return Rows(**{name: value[list(rows)] for name, value in self.__dict__.items()})


@dataclass(frozen=True)
class Objective:
    parts: tuple[tuple[Rows, ...], ...]
    losses: tuple[Any, ...] = LOSSES
    counts: tuple[dict[str, int], ...] = ()


@dataclass(frozen=True)
class Given:
    """Its terms are the rows' advantages."""

    denominator = "tokens"
    active = True

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        terms: Tensor = torch.where(rows.response_mask, rows.advantages + 0.0 * forward.log_probs, 0.0)
        return terms


def make_rows(count: int = 8, width: int = 9, pads: int = 2, dtype: torch.dtype = torch.float64) -> Rows:
    """Random right-padded rows; the last `pads` are padding rows."""
    draw = torch.Generator().manual_seed(5)
    total, steps = count + pads, torch.arange(width)
    lengths = torch.randint(4, width + 1, (total,), generator=draw)
    is_pad = torch.arange(total) >= count
    attention = steps < torch.where(is_pad, 2, lengths)[:, None]
    numbers = torch.randn(3, total, width - 1, generator=draw, dtype=torch.float64).to(dtype)
    ids = torch.where(attention & ~is_pad[:, None], torch.randint(3, 16, (total, width), generator=draw), 0)
    own = torch.arange(total)
    return Rows(
        input_ids=ids, position_ids=steps.expand(total, width) * attention, is_pad=is_pad,
        response_mask=(attention & (steps >= 2) & ~is_pad[:, None])[:, 1:].clone(), uid=own // 2, traj_uid=own % 2,
        old_log_probs=-2.7 + 0.3 * numbers[0], ref_log_probs=-2.7 + 0.3 * numbers[1], advantages=numbers[2],
    )  # fmt: skip


def masked(rows: Rows) -> Rows:
    return replace(rows, response_mask=torch.zeros_like(rows.response_mask))


@dataclass(frozen=True)
class Place:
    """Which rank of how many, and where things are."""

    rank: int
    size: int
    folder: Path

    def engine(self, name: str, **options: Any) -> TorchEngine:
        rendezvous = f"file://{self.folder}/rendezvous.{name}"
        return TorchEngine(
            self.folder / "model", rank=self.rank, dp_size=self.size, rendezvous=rendezvous, **{"timeout_s": 60.0, **options}
        )  # fmt: skip

    def share(self, *of_ranks: tuple[Rows, ...]) -> tuple[Rows, ...]:
        """This rank's micro-batches of a mini-batch; all of them with one rank."""
        return of_ranks[self.rank] if self.size > 1 else tuple(micro for part in of_ranks for micro in part)


def weights(engine: TorchEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.named_tensors()}


def gradient(place: Place, name: str, dtype: str, *of_ranks: tuple[Rows, ...]) -> dict[str, Tensor]:
    engine = place.engine(name, dtype=dtype)
    before, trained, part = weights(engine), engine._parameters(), place.share(*of_ranks)
    (counts,) = whole_counts(Objective((part,)), LOSSES, engine._ranks)
    updater = Updater(trained, torch.optim.SGD(trained, lr=0.0), engine._forward, engine._ranks, grad_clip=0)
    updater.step(part, loss_names(LOSSES), counts, lr=1.0, place="test")
    engine.close()
    return {key: before[key] - after for key, after in weights(engine).items()}


def gradient_float64(place: Place) -> Any:
    rows = make_rows()
    return gradient(place, "float64", "float64", (rows.take(0, 1), rows.take(8, 2)), (rows.take(3, 4, 5, 6, 7), rows.take(9)))


def gradient_float32(place: Place) -> Any:
    rows = make_rows(dtype=torch.float32)
    return gradient(place, "float32", "float32", (rows.take(7, 0),), (rows.take(3), rows.take(6, 5, 1, 2), rows.take(4)))


def gradient_in_another_order(place: Place) -> Any:
    rows = make_rows()
    return gradient(place, "order", "float64", (rows.take(6, 3, 0),), (rows.take(5, 1), rows.take(2, 7, 4)))


def four_mini_batches(place: Place) -> Any:
    rows, engine = make_rows(), place.engine("four", dtype="float64", lr=1e-2)
    parts = tuple(place.share((rows.take(2 * j),), (rows.take(2 * j + 1), rows.take(8))) for j in range(4))
    metrics = engine.train(Objective(parts))
    engine.close()
    return {**weights(engine), "metrics": metrics}


@dataclass(frozen=True)
class AboveMean(Given):
    """The rows' advantages, where they are above their mean over the mini-batch."""

    def first_pass(self, forward: Any, rows: Any) -> dict[str, Tensor]:
        return {"a": rows.advantages}

    def statistic(self, tokens: Any) -> dict[str, Tensor]:
        return {"above": tokens["a"] > tokens["a"].mean(), "count": torch.tensor(float(len(tokens["a"])))}

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        found = rows.statistics()
        return super().__call__(forward, rows).where(found["above"], 0.0) * found["count"]


def statistic_over_ranks(place: Place) -> Any:
    """A rank has one row of one token, the other two micro-batches; mean (8 + 1 + 3 + 0) / 4 = 3: only 8 is above, 8 * 4 / 4."""
    engine = place.engine("statistic")
    part = place.share((given_rows(8.0),), (given_rows(1.0), given_rows(3.0, 0.0)))
    metrics = engine.train(Objective((part,), (AboveMean(),)))
    none_here = engine.train(Objective((place.share((given_rows(8.0, 0.0),), ()),), (AboveMean(),)))
    engine.close()
    return {"loss": metrics["loss"], "none_here": none_here["loss"]}


def given_rows(*terms: float) -> Rows:
    mask, values = torch.zeros(1, 8, dtype=torch.bool), torch.zeros(1, 8)
    mask[0, : len(terms)], values[0, : len(terms)] = True, torch.tensor(terms)
    return replace(make_rows().take(0), response_mask=mask, advantages=values)


def L5_ranks_with_few_tokens(place: Place) -> Any:
    engine = place.engine("L5")
    metrics = engine.train(Objective((place.share((given_rows(3, 3),), (given_rows(*[1] * 8),)),), losses=(Given(),)))
    engine.close()
    return {"metrics": metrics}


def L15_masked_rank(place: Place) -> Any:
    """One rank holds only masked rows in mini-batch 0, no micro-batch at all in 1, and padding in 2."""
    rows, engine = make_rows(), place.engine("L15", dtype="float64", lr=1e-2)
    real = (rows.take(2, 3),), (rows.take(4, 5),), (rows.take(6, 7),)
    empty = (masked(rows.take(0, 1)),), (), (rows.take(8, 9),)
    metrics = engine.train(Objective(tuple(place.share(nothing, some) for nothing, some in zip(empty, real, strict=True))))
    engine.close()
    return {**weights(engine), "metrics": metrics}


def trajectories_over_ranks(place: Place) -> Any:
    """Leaves of one trajectory on two ranks: the trajectory counts once."""
    one_group = {"uid": torch.zeros(10, dtype=torch.long), "traj_uid": torch.tensor([0, 1, 1, 2] + [9] * 6)}
    rows = replace(make_rows(), advantages=torch.ones(10, 8), response_mask=torch.arange(8).expand(10, 8) == 2, **one_group)
    loss = type("PerTrajectory", (Given,), {"denominator": "trajectories"})()
    engine = place.engine("trajectories")
    metrics = engine.train(Objective((place.share((rows.take(0, 1),), (rows.take(2, 3),)),), losses=(loss,)))
    engine.close()
    return {"metrics": metrics}


def nan_on_one_rank(place: Place) -> Any:
    rows, engine = make_rows(dtype=torch.float32), place.engine("nan")
    before = weights(engine)
    bad = replace(rows, advantages=rows.advantages * float("nan"))
    message = refusal(lambda: engine.train(Objective((place.share((rows.take(0, 1),), (rows.take(2), bad.take(3))),))))
    engine.close()
    return {"message": message, "moved": any(not torch.equal(t, before[k]) for k, t in weights(engine).items())}


def broken_on_one_rank(place: Place) -> Any:
    """A bug of a loss, not a number: rank 1 raises its own exception, rank 0 hears of it."""
    rows, engine = make_rows(dtype=torch.float32), place.engine("bug")
    loss = type("Buggy", (Given,), {"__call__": lambda self, f, r: {}["gone"] if int(r.uid[0]) == 2 else Given()(f, r)})()
    message = refusal(lambda: engine.train(Objective((place.share((rows.take(0, 1),), (rows.take(4, 5),)),), losses=(loss,))))
    engine.close()
    return {"message": message}


def unequal_mini_batches(place: Place) -> Any:
    rows, engine = make_rows(dtype=torch.float32), place.engine("unequal")
    parts = ((rows.take(0),), (rows.take(1),))[: 2 - place.rank]
    message = refusal(lambda: engine.train(Objective(parts)))
    engine.close()
    return {"message": message}


def checkpoint_of_two_ranks(place: Place) -> Any:
    rows, engine = make_rows(), place.engine("save", dtype="float64", lr=1e-2)
    step = Objective((place.share((rows.take(0, 1),), (rows.take(2, 3),)),))
    engine.train(step)
    torch.manual_seed(100 + place.rank)
    engine.save(place.folder / "checkpoint")
    straight, drawn = engine.train(step), torch.rand(1).item()
    end = weights(engine)
    engine.close()
    resumed = place.engine("resume", dtype="float64", lr=1e-2)
    resumed.restore(place.folder / "checkpoint")
    same = resumed.train(step) == straight and all(torch.equal(t, end[k]) for k, t in weights(resumed).items())
    redrawn = torch.rand(1).item()
    resumed.close()
    return {"same": same, "version": resumed.version, "drawn": drawn, "redrawn": redrawn}


def listening(place: Place) -> Any:
    """Addresses (hex) on which this process listens while it is in a group."""
    engine = place.engine("listen")
    links = [_link(fd) for fd in os.listdir("/proc/self/fd")]
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
    lines = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{file}").read_text().splitlines()[1:]]
    engine.close()
    return {"addresses": sorted({columns[1].split(":")[0] for columns in lines if columns[3] == "0A" and columns[9] in inodes})}


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # closed since it was listed
        return ""


def stuck_rank(place: Place) -> Any:
    """Rank 1 does not come for longer than the bound."""
    rows, engine = make_rows(dtype=torch.float32), place.engine("stuck", timeout_s=STUCK_S)
    if place.rank == 1:
        time.sleep(2 * STUCK_S)
        engine.close()
        return {}
    began = time.monotonic()
    message, waited = refusal(lambda: engine.train(Objective(((rows.take(0),),)))), time.monotonic() - began
    engine.close()
    return {"message": message, "waited": waited}


def dead_rank(place: Place) -> Any:
    """Rank 1 dies. The last scenario: nothing runs after it."""
    rows, engine = make_rows(dtype=torch.float32), place.engine("dead")
    if place.rank == 1:
        os._exit(9)
    began = time.monotonic()
    message = refusal(lambda: engine.train(Objective(((rows.take(0),),))))
    return {"message": message, "waited": time.monotonic() - began}


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (RlflowError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


SCENARIOS: tuple[Callable[[Place], Any], ...] = (
    gradient_float64, gradient_float32, gradient_in_another_order, four_mini_batches, L5_ranks_with_few_tokens, L15_masked_rank,
    statistic_over_ranks, trajectories_over_ranks, nan_on_one_rank,
    broken_on_one_rank, unequal_mini_batches, checkpoint_of_two_ranks, listening,
    stuck_rank, dead_rank,
)  # fmt: skip


def main(folder: Path, rank: int) -> None:
    for scenario in SCENARIOS:
        try:
            result = scenario(Place(rank, 2, folder))
        except EngineError as error:  # an unexpected one: the test shows it
            result = {"unexpected": str(error)}
        tensors = {k: v for k, v in result.items() if isinstance(v, Tensor)}
        save_file(tensors, folder / f"{scenario.__name__}.{rank}.safetensors")
        (folder / f"{scenario.__name__}.{rank}.json").write_text(json.dumps({k: v for k, v in result.items() if k not in tensors}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
