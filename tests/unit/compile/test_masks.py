"""Masks of one shape: attention, response, loss and pad are not each other (S5), nor are raw rewards shaped ones (G13)."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import pytest
from start import Start
from vocabulary import B, R, ResponseMask, TokenScores, mask, reward

from rlflow import CheckFailed, Tensor, f32, flag, operator, pipeline

MASKS = {
    "attention": Annotated[Tensor, flag[B, R], mask("attention")],
    "response": Annotated[Tensor, flag[B, R], mask("response")],
    "loss": Annotated[Tensor, flag[B, R], mask("loss")],
    "pad": Annotated[Tensor, flag[B, R], mask("pad")],
}
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

    try:
        loop()
    except CheckFailed as found:
        return [f"{d.code}: {d.message}" for d in found.diagnostics]
    return []


@pytest.mark.parametrize(("made", "asked"), product(MASKS, MASKS))
def test_S5_a_mask_of_one_kind_is_not_taken_for_another(made: str, asked: str) -> None:
    expected = [] if made == asked else [f"RLF121: `field` of `take` is mask({asked}), got mask({made})"]
    assert refused(MASKS[made], MASKS[asked]) == expected


@pytest.mark.parametrize(("made", "asked"), product(REWARDS, REWARDS))
def test_G13_raw_and_shaped_rewards_are_told_apart(made: str, asked: str) -> None:
    expected = [] if made == asked else [f"RLF121: `field` of `take` is reward({asked}), got reward({made})"]
    assert refused(REWARDS[made], REWARDS[asked]) == expected


def test_a_mask_is_no_reward() -> None:
    assert refused(MASKS["response"], REWARDS["raw"])
