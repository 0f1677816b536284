"""A first pass over the mini-batch: what a loss measures of all tokens, and what each of its terms is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loss_scale import Given, loss_of, rows_of
from torch import Tensor
from train_cases import Objective, make_rows

from operators.loss import ppo_clip
from rlflow.engines.train.torch import TorchEngine
from rlflow.errors import EngineError


@dataclass(frozen=True)
class Largest(Given):
    """Of the rows' advantages the `count` largest, less the mean of all."""

    count: int = 2

    def first_pass(self, forward: Any, rows: Any) -> dict[str, Tensor]:
        assert not forward.log_probs.requires_grad
        return {"a": rows.advantages, "position": rows.positions(), "odd": rows.positions() % 2 == 1}

    def statistic(self, tokens: Any) -> dict[str, Tensor]:
        assert {name: value.dtype for name, value in tokens.items()} == {
            "a": torch.float64, "position": torch.int64, "odd": torch.bool
        }  # fmt: skip
        chosen = torch.zeros(len(tokens["a"]), dtype=torch.bool)
        chosen[tokens["a"].topk(self.count).indices] = True
        return {"chosen": chosen, "mean": tokens["a"].mean()}

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        found, terms = rows.statistics(), super().__call__(forward, rows)
        return torch.where(found["chosen"], terms - found["mean"], 0.0)


@pytest.mark.parametrize("cut", [((0, 1, 2),), ((0,), (1,), (2,)), ((2, 0), (3, 1)), ((3, 2), (1, 0))])
def test_the_statistic_is_of_the_mini_batch_not_of_the_cut(policy_path: Path, cut: tuple[tuple[int, ...], ...]) -> None:
    """Terms 5 1 | 4 | 2 3: mean 3, the two largest 5 and 4: ((5 - 3) + (4 - 3)) / 5. Row 3 is padding."""
    rows = rows_of([5.0, 1.0], [4.0], [2.0, 3.0], pads=1)
    assert loss_of(policy_path, tuple(rows.take(part) for part in cut), loss=Largest()) == pytest.approx(3 / 5)


def test_each_mini_batch_has_its_own(policy_path: Path) -> None:
    """Means 3 and 20: (5 - 3) / 2 tokens, and (30 - 20) / 2; reported together over 4 tokens."""
    parts = ((rows_of([5.0, 1.0]),), (rows_of([10.0, 30.0]),))
    assert loss_of(policy_path, *parts, loss=Largest(count=1)) == pytest.approx((2 + 10) / 4)


def test_the_first_pass_leaves_no_gradient_and_reads_what_the_forward_fills_in(policy_path: Path) -> None:
    @dataclass(frozen=True)
    class OnPolicy(Given):
        from_forward = {"old_log_probs": "log_probs"}  # noqa: RUF012 - a literal of this class

        def first_pass(self, forward: Any, rows: Any) -> dict[str, Tensor]:
            return {"ratio": (forward.log_probs - rows.old_log_probs).exp()}

        def statistic(self, tokens: Any) -> dict[str, Tensor]:
            return {"mean": tokens["ratio"].mean()}

        def __call__(self, forward: Any, rows: Any) -> Tensor:
            return super().__call__(forward, rows) * rows.statistics()["mean"]

    from types import SimpleNamespace

    rows = rows_of([2.0, 4.0])
    bare = SimpleNamespace(**{name: value for name, value in vars(rows).items() if name != "old_log_probs"})
    assert loss_of(policy_path, (bare,), loss=OnPolicy()) == pytest.approx(3.0)  # type: ignore[arg-type]


def test_a_mini_batch_without_a_trained_token_has_no_statistic(policy_path: Path) -> None:
    for losses in ((Largest(),), (Largest(), ppo_clip())):
        metrics = TorchEngine(policy_path).train(Objective(losses, ((rows_of([], []),),)))
        assert (metrics["loss"], metrics["steps"]) == (0.0, 0.0)


def test_a_value_that_is_not_finite_names_the_row(policy_path: Path) -> None:
    rows = rows_of([5.0, 1.0], [4.0])
    wrong = replace(rows, advantages=torch.tensor([[5.0, 1.0], [float("nan"), float("nan")]]))
    expected = r"micro-batch 0: Largest\.first_pass yields `a` that is not finite in row 1 \(uid 0, traj_uid 1\)$"
    with pytest.raises(EngineError, match=expected):
        loss_of(policy_path, (wrong,), loss=Largest())


@pytest.mark.parametrize(
    ("method", "made", "message"),
    [
        ("first_pass", {"a": torch.ones(3)}, r"Odd\.first_pass yields `a` of shape \[3\]; a number a token is \[1, 2\]"),
        ("first_pass", {}, r"Odd\.first_pass yields nothing to make a statistic of"),
        ("statistic", {"m": torch.ones(1, 2)}, r"Odd\.statistic makes `m` of shape \[1, 2\]; a number is \[\], one a token \[2\]"),
    ],
)
def test_other_shapes_are_refused(policy_path: Path, method: str, made: Any, message: str) -> None:
    odd = type("Odd", (Largest,), {method: lambda self, *given: made})()
    with pytest.raises(EngineError, match=message):
        loss_of(policy_path, (rows_of([1.0, 2.0]),), loss=odd)


def test_statistics_come_in_the_dtype_of_the_forward(policy_path: Path) -> None:
    seen: list[Any] = []

    class Spy(Largest):
        def __call__(self, forward: Any, rows: Any) -> Tensor:
            seen.append(rows.statistics()["mean"].dtype)
            return super().__call__(forward, rows)

    for dtype in ("float32", "float64"):
        rows = make_rows((4, 5), dtype=getattr(torch, dtype))
        TorchEngine(policy_path, dtype=dtype).train(Objective((Spy(),), ((rows,),)))  # type: ignore[arg-type]
    assert seen == [torch.float32, torch.float64]
