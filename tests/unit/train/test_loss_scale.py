"""Who divides: the engine, once, by the count of the whole mini-batch. Terms are given, so the expected losses are literals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from train_cases import Objective, Rows, make_rows

from operators.filters import mask_overlong
from operators.mismatch import reject_rows, reject_tokens
from rlflow.engines.train.torch import TorchEngine
from rlflow.errors import EngineError


@dataclass(frozen=True)
class Given:
    """Terms that the rows carry as `advantages`, connected to the forward. They are what the mini-batch's loss is made of."""

    denominator: Any = "tokens"
    active: bool = True

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        terms: Tensor = torch.where(rows.response_mask, rows.advantages + 0.0 * forward.log_probs, 0.0)
        return terms


@dataclass(frozen=True)
class Sloped(Given):
    """The same terms, and the gradient of the log-probs themselves."""

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        terms: Tensor = torch.where(rows.response_mask, rows.advantages + forward.log_probs - forward.log_probs.detach(), 0.0)
        return terms


def rows_of(*terms: list[float], pads: int = 0) -> Rows:
    """A micro-batch: a row each, its terms on its trained tokens."""
    width = max(map(len, terms))
    rows = make_rows([width + 1] * len(terms), pads=pads)
    mask, values = torch.zeros(len(terms) + pads, width, dtype=torch.bool), torch.zeros(len(terms) + pads, width)
    for i, row in enumerate(terms):
        mask[i, : len(row)] = True
        values[i, : len(row)] = torch.tensor(row)
    return replace(rows, response_mask=mask, advantages=values)


def loss_of(path: Path, *parts: tuple[Rows, ...], loss: Any = None, counts: tuple[dict[str, int], ...] = ()) -> float:
    return TorchEngine(path).train(Objective((loss or Given(),), parts, counts))["loss"]


def test_L1_token_mean_is_split_invariant(policy_path: Path) -> None:
    split = loss_of(policy_path, (rows_of([4.0]), rows_of([1.0] * 9)))
    assert split == pytest.approx(1.3)
    assert loss_of(policy_path, (rows_of([4.0], [1.0] * 9),)) == pytest.approx(1.3)


def test_L3_eight_micro_batches_of_one_row_are_no_eightfold_loss(policy_path: Path) -> None:
    """A loss that was handed no count of the batch divided by its own rows: at a micro-batch size of 1 it was 8 times as large."""
    assert loss_of(policy_path, tuple(rows_of([2.0]) for _ in range(8))) == pytest.approx(2.0)
    assert loss_of(policy_path, (rows_of(*[[2.0]] * 8),)) == pytest.approx(2.0)


def test_L10_masked_completions_are_not_in_the_denominator(policy_path: Path) -> None:
    two = (rows_of([2.0, 2.0], []),)
    assert loss_of(policy_path, two) == pytest.approx(2.0)
    assert loss_of(policy_path, two, loss=Given("rows")) == pytest.approx(4.0)
    assert loss_of(policy_path, (rows_of([2.0, 2.0]), rows_of([], [])), loss=Given("rows")) == pytest.approx(4.0)


def test_L12_metric_does_not_depend_on_micro_batches(policy_path: Path) -> None:
    rows = make_rows((6, 9, 4, 8, 5, 7, 9, 3))
    eight, two = (tuple(rows.take(range(i, i + size)) for i in range(0, 8, size)) for size in (1, 4))
    one = TorchEngine(policy_path, dtype="float64").train(Objective((Given(),), (eight,)))
    other = TorchEngine(policy_path, dtype="float64").train(Objective((Given(),), (two,)))
    assert one == pytest.approx(other, rel=1e-6)


def test_rows_are_those_with_a_trained_token(policy_path: Path) -> None:
    assert loss_of(policy_path, (rows_of([2.0, 2.0], [1.0], [], pads=3),), loss=Given("rows")) == pytest.approx(5 / 2)


def test_L10_trajectories_and_groups_are_those_with_a_trained_token(policy_path: Path) -> None:
    rows = replace(rows_of([6.0], [], [], [2.0]), uid=torch.tensor([0, 0, 1, 2]), traj_uid=torch.tensor([0, 1, 0, 0]))
    assert loss_of(policy_path, (rows,), loss=Given("trajectories")) == pytest.approx(8 / 2)
    assert loss_of(policy_path, (rows,), loss=Given("groups")) == pytest.approx(8 / 2)


@pytest.mark.parametrize(("generated", "accumulated"), [(4, 2), (8, 32)])
def test_L8_tokens_are_counted_where_they_are_accumulated(policy_path: Path, generated: int, accumulated: int) -> None:
    """Micro-batches a generation, and an optimizer step: counted over the former and summed over the latter, the scale was 0.5 and 4."""
    micro = rows_of([1.0, 1.0, 1.0])
    alone = TorchEngine(policy_path, dtype="float64").train(Objective((Sloped(),), ((micro,),)))
    steps = max(generated // accumulated, 1)
    metrics = TorchEngine(policy_path, dtype="float64", lr=0.0).train(Objective((Sloped(),), ((micro,) * accumulated,) * steps))
    assert (metrics["loss"], metrics["grad_norm_max"] / alone["grad_norm"], metrics["steps"]) == pytest.approx((1.0, 1.0, steps))


def test_constant_denominator(policy_path: Path) -> None:
    assert loss_of(policy_path, (rows_of([2.0, 2.0]), rows_of([1.0])), loss=Given(10)) == pytest.approx(0.5)


def test_trajectories_and_groups_are_counted_from_the_rows(policy_path: Path) -> None:
    rows = replace(rows_of([1.0], [1.0], [1.0], [1.0], pads=1), uid=torch.tensor([0, 0, 0, 1, -5]), traj_uid=torch.tensor([0, 0, 1, 0, -5]))
    assert loss_of(policy_path, (rows.take([0, 1]), rows.take([2, 3, 4])), loss=Given("trajectories")) == pytest.approx(4 / 3)
    assert loss_of(policy_path, (rows.take([0, 2]), rows.take([1, 3, 4])), loss=Given("groups")) == pytest.approx(4 / 2)


def test_G11_trajectories_weigh_alike_however_many_rows_they_became(policy_path: Path) -> None:
    """Session A is one row, B three: a mean of row sums over trajectories, each divided by its rows, weighs both 1 : 1."""
    rows = replace(rows_of([6.0], [1.0], [2.0], [3.0]), uid=torch.zeros(4, dtype=torch.long), traj_uid=torch.tensor([0, 1, 1, 1]))
    weighed = replace(rows, advantages=rows.advantages / torch.tensor([1.0, 3.0, 3.0, 3.0])[:, None])
    assert loss_of(policy_path, (weighed,), loss=Given("trajectories")) == pytest.approx((6 + 2) / 2)


def test_counts_of_the_plan_win_over_counting(policy_path: Path) -> None:
    assert loss_of(policy_path, (rows_of([4.0]),), loss=Given("groups"), counts=({"groups": 8},)) == pytest.approx(0.5)


def test_columns_for_counting_are_asked_for_by_name(policy_path: Path) -> None:
    rows = rows_of([1.0])
    bare = SimpleNamespace(**{k: v for k, v in rows.__dict__.items() if k != "traj_uid"})
    with pytest.raises(EngineError, match="divides by trajectories, but the rows have no traj_uid"):
        loss_of(policy_path, (bare,), loss=Given("trajectories"))  # type: ignore[arg-type]


@pytest.mark.parametrize("denominator", ["sequences", 0, -1.0, True])
def test_unknown_denominators_are_refused(policy_path: Path, denominator: Any) -> None:
    with pytest.raises(EngineError, match=r"Given\.denominator is"):
        loss_of(policy_path, (rows_of([1.0]),), loss=Given(denominator))


def test_G8_padding_rows_change_neither_loss_nor_metrics(policy_path: Path) -> None:
    rows = make_rows((6, 9, 4), pads=3)
    bare, padded = ((rows.take(range(3)),),), ((rows.take(range(3)), rows.take([3]), rows.take([4, 5])),)
    one, other = (TorchEngine(policy_path).train(Objective((Given(),), parts)) for parts in (bare, padded))
    assert one == pytest.approx(other, rel=1e-6)
    assert (other["rows"], other["tokens"]) == (3.0, float(rows.response_mask.sum()))


def test_terms_of_padding_rows_are_dropped_even_if_their_mask_is_on(policy_path: Path) -> None:
    rows = rows_of([2.0], pads=1)
    wrong = replace(rows, response_mask=torch.ones_like(rows.response_mask), advantages=torch.tensor([[2.0], [50.0]]))
    assert loss_of(policy_path, (wrong,)) == pytest.approx(2.0)


def test_several_mini_batches_report_sum_over_count(policy_path: Path) -> None:
    metrics = TorchEngine(policy_path).train(Objective((Given(),), ((rows_of([4.0]),), (rows_of([1.0] * 9),))))
    assert metrics["loss"] == pytest.approx(1.3)
    assert (metrics["steps"], metrics["tokens"]) == (2.0, 10.0)


def test_losses_are_added_and_reported_by_name(policy_path: Path) -> None:
    metrics = TorchEngine(policy_path).train(Objective((Given(), Given("rows"), Given(active=False)), ((rows_of([2.0, 4.0]),),)))
    assert (metrics["Given/loss"], metrics["Given#2/loss"], metrics["loss"]) == pytest.approx((3.0, 6.0, 9.0))


def test_a_loss_that_reduces_is_refused(policy_path: Path) -> None:
    @dataclass(frozen=True)
    class Reduced(Given):
        def __call__(self, forward: Any, rows: Any) -> Tensor:
            return super().__call__(forward, rows).mean()

    with pytest.raises(EngineError, match=r"Reduced returned shape \[\] for 1 rows"):
        loss_of(policy_path, (rows_of([1.0]),), loss=Reduced())


def test_L18_a_loss_without_gradient_is_refused(policy_path: Path) -> None:
    @dataclass(frozen=True)
    class Detached(Given):
        def __call__(self, forward: Any, rows: Any) -> Tensor:
            return super().__call__(forward, rows).detach()

    with pytest.raises(EngineError, match="Detached has no gradient"):
        loss_of(policy_path, (rows_of([1.0]),), loss=Detached())


def test_no_active_loss_is_refused(policy_path: Path) -> None:
    with pytest.raises(EngineError, match="no loss is active"):
        loss_of(policy_path, (rows_of([1.0]),), loss=Given(active=False))


# --- what forgets the mask --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Unmasked(Given):
    """A term on every token."""

    term: float = 4.0

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        return self.term + 0.0 * forward.log_probs


@dataclass(frozen=True)
class OfAdvantages(Given):
    """Forgets the mask, and reads nothing but what is 0 outside of it."""

    def __call__(self, forward: Any, rows: Any) -> Tensor:
        terms: Tensor = rows.advantages + 0.0 * forward.log_probs
        return terms


def test_terms_outside_the_mask_name_the_loss_the_row_and_the_fix(policy_path: Path) -> None:
    rows = replace(rows_of([1.0, 1.0], [1.0, 1.0, 1.0]), uid=torch.tensor([7, 8]))
    expected = (
        r"Unmasked is 4 at position 2 of row 0 \(uid 7, traj_uid 0\), outside response_mask \(so in 1 of 2 rows\).*return `terms\.where"
    )
    with pytest.raises(EngineError, match=expected):
        loss_of(policy_path, (rows,), loss=Unmasked())


def test_terms_on_padding_rows_are_outside_the_mask(policy_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Unmasked is 4 at position 0 of row 1 "):
        loss_of(policy_path, (rows_of([1.0, 1.0], pads=1),), loss=Unmasked())


def test_nan_outside_the_mask_is_not_zero(policy_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Unmasked is nan at position 1 of row 0"):
        loss_of(policy_path, (rows_of([1.0], [1.0, 1.0]),), loss=Unmasked(term=float("nan")))


@pytest.mark.parametrize("outside", [-0.0, 7.0, float("nan"), float("inf")])
def test_L17_what_lies_in_the_rows_outside_the_mask_reaches_no_loss(policy_path: Path, outside: float) -> None:
    rows = rows_of([3.0], [1.0, 2.0])
    junk = replace(rows, advantages=torch.tensor([[3.0, outside], [1.0, 2.0]]))
    assert loss_of(policy_path, (junk,), loss=OfAdvantages()) == pytest.approx(2.0)


def test_a_term_a_row_is_dropped_on_padding_rows(policy_path: Path) -> None:
    @dataclass(frozen=True)
    class ARow(Given):
        denominator: Any = "rows"

        def __call__(self, forward: Any, rows: Any) -> Tensor:
            return super().__call__(forward, rows).sum(-1) + 10.0  # as of -log sigmoid(0): not 0 on a row without tokens

    assert loss_of(policy_path, (rows_of([2.0, 2.0], [4.0], pads=2),), loss=ARow()) == pytest.approx(14.0)


@pytest.mark.parametrize("width", [1, 4])
def test_terms_of_another_width_are_refused(policy_path: Path, width: int) -> None:
    @dataclass(frozen=True)
    class Other(Given):
        def __call__(self, forward: Any, rows: Any) -> Tensor:
            return super().__call__(forward, rows)[:, :1].expand(-1, width)

    with pytest.raises(EngineError, match=rf"Other returned shape \[1, {width}\] for 1 rows and a response_mask of \[1, 2\]"):
        loss_of(policy_path, (rows_of([1.0, 1.0]),), loss=Other())


@pytest.mark.parametrize(("how", "by_tokens", "by_rows"), [
    ("tokens", (2 + 4) / 2, (2 + 4) / 2),  # 9s are outside: of row 1 nothing is left, and it is no row
    ("rows", 4.0, 4.0),
    ("overlong", (2 + 9 + 4) / 3, (2 + 9 + 4) / 2),
])  # fmt: skip
def test_what_is_rejected_is_in_no_denominator(policy_path: Path, how: str, by_tokens: float, by_rows: float) -> None:
    rows = rows_of([2.0, 9.0], [9.0, 9.0], [4.0])
    old = (rows.advantages == 9).float()  # log-ratios 1 where the term is 9, else 0
    given = (rows.response_mask, old, torch.zeros_like(old))
    mask = {
        "tokens": lambda: reject_tokens(*given, high=2.0),
        "rows": lambda: reject_rows(*given, over="max", high=2.0),
        "overlong": lambda: mask_overlong(rows.response_mask, torch.tensor([False, True, False])),
    }[how]()
    trained = replace(rows, response_mask=mask)
    for cut in ((trained,), (trained.take([0]), trained.take([1, 2])), tuple(trained.take([i]) for i in range(3))):
        assert loss_of(policy_path, cut) == pytest.approx(by_tokens)
        assert loss_of(policy_path, cut, loss=Given("rows")) == pytest.approx(by_rows)
