"""P17: micro-batches, padding, padding rows and the order of rows inside a mini-batch do not change the gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_cases import Objective, Rows, make_rows, parameters, relative_difference

from operators.loss import entropy_bonus, kl_penalty, ppo_clip, value_clip
from rlflow.engines.train.denominators import whole_counts
from rlflow.engines.train.distributed import Ranks
from rlflow.engines.train.terms import loss_names
from rlflow.engines.train.torch import TorchEngine
from rlflow.engines.train.update import Updater

LENGTHS = (6, 9, 4, 8, 5, 7, 9, 3)
POLICY_LOSSES: dict[str, tuple[Any, ...]] = {
    "token-mean": (ppo_clip(0.2, 0.28),),
    "seq-mean-token-sum": (ppo_clip(aggregate="seq-mean-token-sum"),),
    "with kl": (ppo_clip(), kl_penalty(0.1)),
    "with entropy": (ppo_clip(), entropy_bonus(0.01)),
}
LIMIT = {"float64": 1e-12, "float32": 1e-6}

Cut = tuple[Rows, ...]


def cuts(rows: Rows) -> dict[str, Cut]:
    """Ways to cut 8 real rows (0 .. 7) and 2 padding rows (8, 9) into micro-batches."""
    return {
        "one micro-batch": (rows.take(range(8)),),
        "one row each": tuple(rows.take([i]) for i in range(8)),
        "uneven": (rows.take([0]), rows.take([1, 2, 3, 4, 5]), rows.take([6, 7])),
        "other order": (rows.take([7, 2, 5]), rows.take([0, 6, 1, 4, 3])),
        "wider padding": (rows.take(range(4), width=13), rows.take(range(4, 8), width=11)),
        "padding rows": (rows.take([0, 8, 1, 2]), rows.take([3, 4, 5, 6, 7]), rows.take([9])),
    }


def gradient(path: Path, kind: str, losses: tuple[Any, ...], cut: Cut, dtype: str) -> dict[str, Tensor]:
    """What the engine's own update steps along: with SGD at rate 1 and no clipping, the change of each parameter."""
    engine = TorchEngine(path, kind=kind, dtype=dtype)  # type: ignore[arg-type]
    before = parameters(engine)
    trained = engine._parameters()
    ranks = Ranks(0, 1, rendezvous="", device=torch.device("cpu"), timeout_s=1)
    updater = Updater(trained, torch.optim.SGD(trained, lr=0.0), engine._forward, ranks, grad_clip=0)
    objective = Objective(losses, (cut,))
    (counts,) = whole_counts(objective, losses, ranks)
    updater.step(cut, loss_names(losses), counts, lr=1.0, place="test")
    return {name: before[name] - after for name, after in parameters(engine).items()}


def rows_in(dtype: str) -> Rows:
    return make_rows(LENGTHS, pads=2, dtype=torch.float64 if dtype == "float64" else torch.float32)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("losses", POLICY_LOSSES)
def test_L13_policy_gradient_does_not_depend_on_the_cut(policy_path: Path, losses: str, dtype: str) -> None:
    ways = cuts(rows_in(dtype))
    full = gradient(policy_path, "policy", POLICY_LOSSES[losses], ways.pop("one micro-batch"), dtype)
    assert max(float(g.abs().max()) for g in full.values()) > 1e-3
    for way, cut in ways.items():
        difference = relative_difference(gradient(policy_path, "policy", POLICY_LOSSES[losses], cut, dtype), full)
        assert difference <= LIMIT[dtype], f"{way}: {difference}"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_value_gradient_does_not_depend_on_the_cut(critic_path: Path, dtype: str) -> None:
    ways = cuts(rows_in(dtype))
    full = gradient(critic_path, "critic", (value_clip(0.2),), ways.pop("one micro-batch"), dtype)
    for way, cut in ways.items():
        difference = relative_difference(gradient(critic_path, "critic", (value_clip(0.2),), cut, dtype), full)
        assert difference <= LIMIT[dtype], f"{way}: {difference}"


def test_gradient_equals_autograd_of_the_formula(policy_path: Path) -> None:
    """An independent computation: a loop over unpadded rows, log_softmax, and one mean over all trained tokens."""
    from transformers import AutoModelForCausalLM

    rows = rows_in("float64")
    model = AutoModelForCausalLM.from_pretrained(policy_path, dtype=torch.float64).eval()
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(LENGTHS):
        logits = model(input_ids=rows.input_ids[i : i + 1, :length]).logits[0]
        for t in range(length - 1):
            if rows.response_mask[i, t]:
                ratio = (logits[t].log_softmax(-1)[rows.input_ids[i, t + 1]] - rows.old_log_probs[i, t]).exp()
                total = total - torch.minimum(ratio * rows.advantages[i, t], ratio.clamp(0.8, 1.28) * rows.advantages[i, t])
    (total / rows.response_mask.sum()).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    mine = gradient(policy_path, "policy", (ppo_clip(0.2, 0.28),), cuts(rows)["uneven"], "float64")
    assert relative_difference(mine, expected) < 1e-12


def test_parameters_after_four_mini_batches_agree(policy_path: Path) -> None:
    rows = rows_in("float64")
    whole = tuple((rows.take([2 * j, 2 * j + 1]),) for j in range(4))
    single = tuple((rows.take([2 * j + 1]), rows.take([2 * j, 8], width=12)) for j in range(4))
    trained = []
    for parts in (whole, single):
        engine = TorchEngine(policy_path, dtype="float64", lr=1e-2)
        engine.train(Objective((ppo_clip(),), parts))
        trained.append(parameters(engine))
    assert relative_difference(trained[1], trained[0]) < 1e-9  # AdamW divides by |g|: it enlarges rounding
