"""Of one dtype and shape: masks of four kinds (S5), rewards raw and shaped (G13), log-probs of four origins are not each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Annotated

import pytest
from start import Start
from vocabulary import B, R, ResponseMask, TokenScores, Torch, log_prob, mask, reward

from rlflow import CheckFailed, Plan, Tensor, f32, flag, operator, pipeline

MASKS = {
    "attention": Annotated[Tensor, flag[B, R], mask("attention")],
    "response": Annotated[Tensor, flag[B, R], mask("response")],
    "loss": Annotated[Tensor, flag[B, R], mask("loss")],
    "pad": Annotated[Tensor, flag[B, R], mask("pad")],
}
LOG_PROBS = {who: Annotated[Tensor, f32[B, R], log_prob(who)] for who in ("served", "current", "frozen", "teacher")}
REWARDS = {"raw": Annotated[Tensor, f32[B, R], reward("raw")], "shaped": Annotated[Tensor, f32[B, R], reward("shaped")]}


def refused(made: object, asked: object) -> list[str]:
    """What is said where a field of one role is handed to a parameter of the other."""

    def make(response_mask: ResponseMask, token_level_scores: TokenScores) -> Tensor: ...  # type: ignore[empty-body]
    def take(field: Tensor) -> None: ...

    make.__annotations__["return"], take.__annotations__["field"] = made, asked
    maker, taker = operator(per="row")(make), operator(per="row", sink=True)(take)

    @pipeline
    def loop() -> None:
        s = Start()
        taker(maker(s.ready.response_mask, s.score.token_level_scores))
        s.finish(s.rows())

    return found(loop)


def found(loop: Callable[[], Plan]) -> list[str]:
    try:
        loop()
    except CheckFailed as refused:
        return [f"{d.code}: {d.message}" for d in refused.diagnostics if d.severity == "error"]
    return []


@pytest.mark.parametrize(("made", "asked"), product(MASKS, MASKS))
def test_S5_a_mask_of_one_kind_is_not_taken_for_another(made: str, asked: str) -> None:
    expected = [] if made == asked else [f"RLF121: `field` of `take` is mask({asked}), got mask({made})"]
    assert refused(MASKS[made], MASKS[asked]) == expected


@pytest.mark.parametrize(("made", "asked"), product(REWARDS, REWARDS))
def test_G13_raw_and_shaped_rewards_are_told_apart(made: str, asked: str) -> None:
    expected = [] if made == asked else [f"RLF121: `field` of `take` is reward({asked}), got reward({made})"]
    assert refused(REWARDS[made], REWARDS[asked]) == expected


TeacherLogProbs = LOG_PROBS["teacher"]


@operator(per="row")
def taught(response_mask: ResponseMask) -> TeacherLogProbs: ...  # type: ignore[empty-body, valid-type]


@pytest.mark.parametrize(("made", "asked"), product(LOG_PROBS, LOG_PROBS))
def test_log_probs_of_rollout_old_reference_and_teacher_are_not_interchangeable(made: str, asked: str) -> None:
    def take(field: Tensor) -> None: ...

    take.__annotations__["field"] = LOG_PROBS[asked]
    taker = operator(per="row", sink=True)(take)

    @pipeline
    def loop() -> None:
        s = Start()
        rows, reference = (s.ready.input_ids, s.ready.response_mask), Torch("reference")
        match made:
            case "served":
                taker(s.ready.rollout_log_probs)
            case "current":
                taker(s.old())
            case "frozen":
                taker(reference.log_probs(reference.load(), *rows))
            case "teacher":
                taker(taught(s.ready.response_mask))
        s.finish(s.rows())

    assert found(loop) == ([] if made == asked else [f"RLF121: `field` of `take` is log_prob({asked}), got log_prob({made})"])


def test_a_mask_is_no_reward() -> None:
    assert refused(MASKS["response"], REWARDS["raw"])
