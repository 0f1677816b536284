"""What `assert_split_invariant` lets pass, and what it catches: each loss here is wrong in one way that has trained somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import torch

from operators.fields import B
from operators.loss import kl_penalty, ppo_clip
from operators.records import PolicyForward, PpoRows
from rlflow import Aggregated, Loss, Tensor, f32
from rlflow.errors import UsageError
from rlflow.testing import assert_split_invariant


class Terms(Aggregated[PolicyForward, PpoRows]):
    """-A log π a token."""

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return self.aggregated(self.gain(forward, rows), rows)

    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        mask = rows.response_mask
        return -forward.log_probs.where(mask, 0.0) * rows.advantages.where(mask, 0.0)


# --- what passes ------------------------------------------------------------------------------------------------------------------------
class OfRows(Loss[PolicyForward, PpoRows]):
    """A term a row, not linear in its sums: of whole rows in every layout."""

    @property
    def denominator(self) -> Any:
        return "rows"

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return rows.row_mean(forward.log_probs).exp() * rows.row_sum(rows.advantages) + rows.row_sum(forward.log_probs) ** 2


class MaskedAfterwards(Aggregated[PolicyForward, PpoRows]):
    """The rows are 0 outside the mask, whatever lay there, so that 0 · NaN is nowhere."""

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return self.aggregated(-(forward.log_probs - rows.old_log_probs).exp() * rows.advantages, rows)


class RowScores(PpoRows):
    score: Annotated[Tensor, f32[B]]


class OfScores(Aggregated[PolicyForward, RowScores]):
    """A field of the user's own, a number a row."""

    def __call__(self, forward: PolicyForward, rows: RowScores) -> Tensor:
        return self.aggregated(-forward.log_probs.where(rows.response_mask, 0.0) * rows.per_token(rows.score), rows)


class Whitened(Terms):
    """By a statistic of the mini-batch, not of what is here."""

    def first_pass(self, forward: PolicyForward, rows: PpoRows) -> Mapping[str, Tensor]:
        return {"advantages": rows.advantages}

    def statistic(self, tokens: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"mean": tokens["advantages"].mean(), "largest": tokens["advantages"] > tokens["advantages"].median()}

    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        found = rows.statistics()
        return (super().gain(forward, rows) + found["mean"] * forward.log_probs).where(found["largest"], 0.0)


@pytest.mark.parametrize(
    "loss",
    [Terms(), Terms(aggregate="seq-mean-token-mean", row_weight="group"), OfRows(), OfScores(), Whitened(), MaskedAfterwards()],
    ids=lambda one: type(one).__name__,
)
def test_what_uses_the_row_view_and_elementwise_methods_passes(loss: Any) -> None:
    assert_split_invariant(loss)


# --- what is caught ---------------------------------------------------------------------------------------------------------------------
class ByMicroTokens(Terms):
    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return super().gain(forward, rows) / rows.response_mask.sum()


class ByMean(Terms):
    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        terms = super().gain(forward, rows)
        return terms - forward.log_probs.where(rows.response_mask, 0.0).mean().detach() * terms


class ByHand(Loss[PolicyForward, PpoRows]):
    """Σ over the positions that lie here."""

    @property
    def denominator(self) -> Any:
        return "rows"

    def __call__(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return forward.log_probs.where(rows.response_mask, 0.0).sum(-1).exp()


class ByMax(Terms):
    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return super().gain(forward, rows) / rows.advantages.where(rows.response_mask, 0.0).abs().max().clamp(min=0.1)


class ByChance(Terms):
    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return super().gain(forward, rows) * (torch.rand(rows.response_mask.shape) > 0.5)


class ByWidth(Terms):
    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return super().gain(forward, rows) / rows.response_mask.shape[-1]


class Outside(Terms):
    """Of what the model says where nothing is trained."""

    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return super().gain(forward, rows) * forward.log_probs.detach().abs().amax(-1, keepdim=True)


class TooLarge(Terms):
    """Masks the terms, and not what they are made of: exp overflows outside, and its gradient is 0 · infinity."""

    def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
        return -(100 * forward.log_probs.abs()).exp().where(rows.response_mask, 0.0) + super().gain(forward, rows)


class ByOrder(Whitened):
    """The first token of the mini-batch is another one in another order."""

    def statistic(self, tokens: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        first = torch.zeros(tokens["advantages"].shape, dtype=torch.bool)
        first[0] = True
        return {"mean": tokens["advantages"].mean(), "largest": ~first}


@pytest.mark.parametrize(
    ("loss", "alone"),
    [
        (ByMicroTokens(), "micro-batches of 1 row"),
        (ByMean(), "micro-batches of 1 row"),
        (ByHand(), "cp 2"),
        (ByMax(), "micro-batches of 2 rows"),
        (ByChance(), "micro-batches of 3 rows"),
        (ByWidth(), "micro-batches of 1 row"),
        (Outside(), "large numbers outside response_mask"),
        (TooLarge(), "large numbers outside response_mask"),
        (ByOrder(), "rows in another order"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_depends_on_the_cut_is_caught_and_told_by_what(loss: Any, alone: str) -> None:
    with pytest.raises(AssertionError) as failed:
        assert_split_invariant(loss)
    message = str(failed.value)
    assert message.startswith(f"{type(loss).__name__} ")
    assert alone in message


def test_the_error_names_the_worst_cut_and_by_how_much() -> None:
    with pytest.raises(AssertionError, match=r"ByMicroTokens is not split-invariant: in float64 with .* ‖Δg‖/‖g‖ is \d") as failed:
        assert_split_invariant(ByMicroTokens())
    assert "By itself this does it: micro-batches of 1 row (" in str(failed.value)


def test_a_loss_that_fails_in_one_layout_is_told_which() -> None:
    class OfPadded(Terms):
        def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
            return super().gain(forward, rows) * rows.row_count()[:, None]

    with pytest.raises(AssertionError, match=r"in float64 with packed it fails, and not without: OfPadded returned shape \[8, "):
        assert_split_invariant(OfPadded())


def test_a_loss_without_gradient_compares_nothing() -> None:
    class Flat(Terms):
        def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
            return 0.0 * super().gain(forward, rows)

    with pytest.raises(AssertionError, match="Flat has no gradient on the drawn rows: nothing can be compared"):
        assert_split_invariant(Flat())


def test_a_loss_that_promises_nothing_is_a_usage_error() -> None:
    class Local(Terms):
        split_invariant = False
        depends_on_cut = "its mean over the micro-batch"

    with pytest.raises(UsageError, match=r"Local says split_invariant = False: its mean over the micro-batch; there is nothing to assert"):
        assert_split_invariant(Local())
    with pytest.raises(UsageError, match="kl_penalty is not active with these options"):
        assert_split_invariant(kl_penalty(0.0))


def test_ranks_that_sum_other_things_end_in_an_error_not_in_a_wait() -> None:
    class Uneven(Terms):
        def gain(self, forward: PolicyForward, rows: PpoRows) -> Tensor:
            first = bool((rows.positions() == 0).any())
            return super().gain(forward, rows) * (rows.per_token(rows.row_mean(rows.advantages)) if first else 1.0)

    with pytest.raises(AssertionError, match=r"in float64 with cp 2 it fails, .*all must sum the same things"):
        assert_split_invariant(Uneven())


def test_ppo_clip_passes() -> None:
    assert_split_invariant(ppo_clip(0.2, 0.28))


def test_inputs_that_are_masked_too_late_are_told_how() -> None:
    with pytest.raises(AssertionError, match=r"with large numbers outside response_mask .* Mask what you read before you compute with it"):
        assert_split_invariant(TooLarge())


def test_a_class_is_no_loss_to_cut() -> None:
    with pytest.raises(UsageError, match=r"ppo_clip is a class of losses"):
        assert_split_invariant(ppo_clip)  # type: ignore[arg-type]
