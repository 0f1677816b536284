"""An operator reads what it is given and returns what it owns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from rlflow import Loss, Micro, Next, Objective, Record, RowsT, Tensor, Worker, dims, f32, operator, text
from rlflow.engines.train.view import LossRows
from rlflow.errors import OperatorError
from rlflow.language import writeonce

B, R = dims("B R")
Numbers = Annotated[Tensor, f32[B, R]]
Words = Annotated[list[str], text[B]]
Write = Callable[[Any], object]


class Pair(Record):
    left: Numbers
    right: Numbers


class Told(Record):
    words: Words


@operator(per="row")
def touch(numbers: Numbers, *, how: Write) -> Numbers:
    how(numbers)
    return torch.zeros(2, 3)


@operator(per="row")
def touch_right(rows: Pair, *, how: Write) -> Numbers:
    how(rows.right)
    return torch.zeros(2, 3)


@operator(per="row")
def touch_words(told: Told, *, how: Write) -> Numbers:
    how(told.words)
    return torch.zeros(2, 3)


@operator(per="row")
def hand_on(numbers: Numbers, *, how: Callable[[Any], Any]) -> Numbers:
    return how(numbers)  # type: ignore[no-any-return]


@operator(per="row")
def as_left(rows: Pair, *, how: Callable[[Any], Any]) -> Pair:
    return Pair(left=how(rows), right=torch.zeros(2, 3))


@operator(per="batch", rows="permute")
def in_order(rows: RowsT) -> RowsT:
    return rows


class Trainer(Worker):
    @operator(per="micro")
    def train(self, weights: Any, objective: Objective[Any, Any]) -> Next[Any]:
        objective.parts[0][1].left.mul_(2)
        return weights  # type: ignore[no-any-return]


def pair() -> Pair:
    return Pair(left=torch.zeros(2, 3), right=torch.ones(2, 3))


def zero_span(x: Any) -> None:
    x[0, 1] = 0.0


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run without --debug."""
    monkeypatch.setattr(writeonce, "debug", False)


# --- what the version counter sees: every run ------------------------------------------------------------------------------------------
IN_PLACE: dict[str, Write] = {
    "method": lambda x: x.add_(1.0),
    "item": zero_span,
    "view": lambda x: x[:, 1:].mul_(2.0),
    "detached": lambda x: x.detach().mul_(2.0),
    "out": lambda x: torch.add(x, 1.0, out=x),
}


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("how", IN_PLACE.values(), ids=IN_PLACE)
def test_a_write_in_place_is_refused_in_every_run(how: Write) -> None:
    with pytest.raises(OperatorError, match=r"`touch` .* wrote into its input `numbers`"):
        touch(torch.ones(2, 3), how=how)


@pytest.mark.usefixtures("cheap")
def test_the_message_names_operator_place_field_and_fix() -> None:
    with pytest.raises(OperatorError) as refused:
        touch_right(pair(), how=zero_span)
    line = Path(__file__).read_text().splitlines().index("def touch_right(rows: Pair, *, how: Write) -> Numbers:")
    assert str(refused.value) == (
        f"`touch_right` ({__file__}:{line}) wrote into its input `rows.right`: every other reader of that field would see the change. "
        "Write to a copy: `right = rows.right.clone()`"
    )


@pytest.mark.usefixtures("cheap")
def test_a_keyword_is_named_like_a_position() -> None:
    with pytest.raises(OperatorError, match=r"its input `rows\.right`"):
        touch_right(rows=pair(), how=zero_span)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("how", [lambda x: x.append("c"), lambda x: x.sort(reverse=True), lambda x: x.__setitem__(0, "c")])
def test_a_list_is_not_to_be_changed_either(how: Write) -> None:
    with pytest.raises(OperatorError, match=r"`told.words`.*`words = told.words.copy\(\)`"):
        touch_words(Told(words=["a", "b"]), how=how)


@pytest.mark.usefixtures("cheap")
def test_a_tensor_in_a_list_is_looked_at() -> None:
    with pytest.raises(OperatorError, match=r"its input `numbers\[1\]`"):
        touch([torch.ones(3), torch.ones(2)], how=lambda x: x[1].zero_())  # type: ignore[arg-type]


@pytest.mark.usefixtures("cheap")
def test_configuration_is_shared_by_all_calls_and_stays() -> None:
    @operator(per="row")
    def counting(numbers: Numbers, *, seen: dict[str, int]) -> Numbers:
        seen["calls"] = 1
        return numbers * 2

    with pytest.raises(OperatorError, match=r"`seen = seen.copy\(\)`"):
        counting(torch.ones(2, 3), seen={})


@pytest.mark.usefixtures("cheap")
def test_an_array_is_compared_by_what_it_holds() -> None:
    with pytest.raises(OperatorError, match=r"`numbers = numbers.copy\(\)`"):
        touch(np.ones((2, 3)), how=zero_span)  # type: ignore[arg-type]


@pytest.mark.usefixtures("cheap")
def test_an_engine_that_writes_into_a_micro_batch_is_found() -> None:
    objective: Objective[Any, Any] = Objective(rows=None, losses=(), parts=((pair(), pair()),))  # type: ignore[type-var]
    with pytest.raises(OperatorError, match=r"`Trainer.train` .* wrote into its input `objective.parts\[0\]\[1\].left`"):
        Trainer("t").train(SimpleNamespace(version=0), objective)


class Centred(Loss[Pair, Pair]):
    def __call__(self, forward: Pair, rows: Pair) -> Tensor:
        return forward.left * rows.right.sub_(1.0)

    def metrics(self, forward: Pair, rows: Pair) -> dict[str, Tensor]:
        return {"left": forward.left.data.clamp_(max=0.5)}


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("call", [lambda loss: loss(pair(), pair()), lambda loss: loss(forward=pair(), rows=pair())])
def test_a_loss_may_not_write_either(call: Callable[[Any], Any]) -> None:
    with pytest.raises(OperatorError, match=r"`Centred` .* wrote into its input `rows.right`.*`right = rows.right.clone\(\)`"):
        call(Centred())


def test_nor_may_its_metrics() -> None:
    with pytest.raises(OperatorError, match=r"`Centred.metrics` .* wrote into its input `forward.left`"):
        Centred().metrics(Pair(left=torch.ones(2, 3), right=torch.ones(2, 3)), pair())


@pytest.mark.usefixtures("cheap")
def test_what_a_loss_takes_from_the_forward_is_the_forwards_memory() -> None:
    class Anchored(Loss[Pair, Pair]):
        def __call__(self, forward: Pair, rows: Pair) -> Tensor:
            return forward.left - rows.right.mul_(2.0)

    forward = SimpleNamespace(left=torch.ones(2, 3, requires_grad=True) * 1.0)
    rows = SimpleNamespace(left=torch.ones(2, 3), response_mask=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(OperatorError, match=r"`Anchored` .* wrote into its input `(forward.left|rows.right)`"):
        Anchored()(forward, LossRows(rows, forward, {"right": "left"}))  # type: ignore[arg-type]


@pytest.mark.usefixtures("cheap")
def test_micro_batches_are_looked_into() -> None:
    @operator(per="micro")
    def weigh(micro: Micro[Pair]) -> None:
        micro.parts[0][0].right.zero_()

    with pytest.raises(OperatorError, match=r"`right = micro.parts\[0\]\[0\].right.clone\(\)`"):
        weigh(Micro(pair(), parts=((pair(),),)))


@pytest.mark.usefixtures("cheap")
def test_what_an_operator_makes_it_may_write_to() -> None:
    def scratch(x: Any) -> None:
        x.clone().zero_()
        (x * 2).add_(1.0)

    numbers = torch.ones(2, 3)
    assert touch(numbers, how=scratch).tolist() == [[0.0] * 3] * 2
    assert numbers.tolist() == [[1.0] * 3] * 2


@pytest.mark.usefixtures("cheap")
def test_what_the_operator_raises_comes_first() -> None:
    def wrong(x: Any) -> None:
        x.zero_()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        touch(torch.ones(2, 3), how=wrong)


# --- what only the contents show: debug runs and tests ---------------------------------------------------------------------------------
BEHIND: dict[str, Write] = {
    "data": lambda x: x.data.zero_(),
    "numpy": lambda x: zero_span(x.numpy()),
    "view of data": lambda x: x.data[:, 1:].zero_(),
}


def test_the_tests_run_in_debug() -> None:
    assert writeonce.debug


@pytest.mark.parametrize("how", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_write_behind_the_counter_is_refused_in_debug(how: Write, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and how is BEHIND["numpy"]:
        pytest.skip("numpy has no bfloat16")
    with pytest.raises(OperatorError, match="wrote into its input `numbers`"):
        touch(torch.ones(2, 3, dtype=dtype), how=how)


def test_a_tensor_without_a_counter_is_compared_in_debug() -> None:
    with torch.inference_mode():
        numbers = torch.ones(2, 3)
        with pytest.raises(OperatorError, match="wrote into its input `numbers`"):
            touch(numbers, how=zero_span)
        assert touch(torch.ones(2, 3), how=repr).shape == (2, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_no_change(value: float) -> None:
    assert touch(torch.full((2, 3), value), how=repr).shape == (2, 3)


@pytest.mark.parametrize("numbers", [torch.ones(0, 3), torch.ones(1, 1).expand(2, 3), torch.tensor(1.0), torch.ones(3, 2).T])
def test_any_shape_can_be_compared(numbers: Tensor) -> None:
    assert touch(numbers, how=repr).shape == (2, 3)


def test_g24_a_penalty_on_one_token_of_an_expanded_row() -> None:
    advantages = torch.tensor([[1.0]]).expand(1, 4)  # four tokens, one memory
    with pytest.raises(OperatorError, match=r"`numbers = numbers.clone\(\)`"):
        touch(advantages, how=zero_span)
    with pytest.raises(OperatorError, match="wrote into its input `numbers`"):
        touch(torch.tensor([[1.0]]).expand(1, 4), how=lambda x: zero_span(x.data))


def test_g25_the_kl_is_made_the_reward_in_place() -> None:
    @operator(per="row")
    def kl_rewards(kl: Numbers, scores: Numbers, *, coef: float) -> Numbers:
        return kl.mul_(-coef).add_(scores)

    with pytest.raises(OperatorError, match=r"`kl_rewards` .* wrote into its input `kl`.*`kl = kl.clone\(\)`"):
        kl_rewards(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 1.0]]), coef=0.1)


# --- what is returned ------------------------------------------------------------------------------------------------------------------
ALIASES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "view": lambda x: x[:, 1:],
    "detached": lambda x: x.detach(),
    "expanded": lambda x: x[:, :1].expand(2, 3),
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("how", ALIASES.values(), ids=ALIASES)
def test_a_new_field_in_the_memory_of_an_input_is_refused(how: Callable[[Any], Any]) -> None:
    with pytest.raises(OperatorError, match=r"`hand_on` .* returns memory of its input `numbers` as its result.*`numbers.clone\(\)`"):
        hand_on(torch.ones(2, 3), how=how)


def test_a_field_of_a_new_record_is_named() -> None:
    with pytest.raises(OperatorError, match=r"returns memory of its input `rows\.right` as `left`"):
        as_left(pair(), how=lambda rows: rows.right)
    assert as_left(pair(), how=lambda rows: rows.right + 1).left.tolist() == [[2.0] * 3] * 2


def test_a_list_handed_on_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"returns memory of its input `numbers` as its result"):
        hand_on(["a"], how=lambda x: x)  # type: ignore[arg-type]
    assert hand_on(["a"], how=list) == ["a"]  # type: ignore[arg-type, comparison-overlap]


def test_rows_that_are_handed_on_are_the_same_fields() -> None:
    rows = pair()
    assert in_order(rows) is rows
