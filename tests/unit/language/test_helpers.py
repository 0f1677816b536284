"""A mistake in a plain function is told where it stands; with `__tracebackhide__` it is the caller's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from start import Start
from vocabulary import grpo

from rlflow import CheckFailed, pipeline


def plain(fn: Any, *, token_level_rewards: Any, response_mask: Any, uid: Any) -> Any:
    return fn(token_level_rewards, response_mask, uid)


def hidden(fn: Any, *, token_level_rewards: Any, response_mask: Any, uid: Any) -> Any:
    __tracebackhide__ = True
    return fn(token_level_rewards, response_mask, uid)


def refused(helper: Any) -> tuple[str, list[str]]:
    """The text under the mark, and the second places, of a call that is given advantages for rewards."""

    @pipeline
    def loop() -> None:
        s = Start()
        helper(grpo, token_level_rewards=s.advantages, response_mask=s.ready.response_mask, uid=s.ready.uid)

    with pytest.raises(CheckFailed) as found:
        loop()
    (one,) = (d for d in found.value.diagnostics if d.code == "RLF121")
    line = Path(one.where.file).read_text().splitlines()[one.where.line - 1]
    return line[one.where.column : one.where.end_column], [label.text for label in one.related]


def test_a_plain_helper_holds_the_place_and_the_pipeline_is_the_second() -> None:
    text, related = refused(plain)
    assert text == "token_level_rewards"
    assert related[-1] == "called from here"


def test_a_helper_that_hides_itself_points_at_the_argument_of_its_caller() -> None:
    text, related = refused(hidden)
    assert text == "s.advantages"
    assert "called from here" not in related
