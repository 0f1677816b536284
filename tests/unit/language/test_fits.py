"""Which values an option takes: what Python itself would take is no mistake."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from start import Start
from vocabulary import PolicyForward, PpoRows, micro_pack, shard, sync

from operators.environment import Environment, HigherLower
from operators.fields import TokenCount
from operators.reward import RewardFn, integer_match
from rlflow import Loss, count, pipeline
from rlflow.language.diagnostic import shown
from rlflow.language.fits import misfit

if TYPE_CHECKING:
    from fractions import Fraction


class scaled(Loss[PolicyForward, PpoRows]):  # noqa: N801
    by: Fraction | int = 1


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (float, 1),
        (int, True),
        (int | None, None),
        (Annotated[int, "unit"], 3),
        (TokenCount, 4096),
        (Literal["a", 2], 2),
        (Literal["a"] | None, None),
        (float | str, "auto"),
        (Path, "not judged"),
        (list[int], "not judged"),
        (Any, object()),
        (None, "an option without a type"),
        (Environment, HigherLower(turns=4)),
        (Environment | None, None),
        (RewardFn, integer_match),
        (RewardFn, partial(integer_match, workers=1)),
    ],
)
def test_a_value_of_the_type_fits(hint: Any, value: object) -> None:
    assert misfit(hint, value) is None


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (int, "3", "is int, got '3'"),
        (int, 1.5, "is int, got 1.5"),
        (float, "0.1", "is float, got '0.1'"),
        (bool, "False", "is bool, got 'False'"),
        (TokenCount, None, "is int, got None"),
        (float | None, "none", "is float, got 'none'"),
        (Literal["tokens", "rows"], "token", "is 'tokens' or 'rows', got 'token'; did you mean `tokens`?"),
        (Literal[1, 2], True, "is 1 or 2, got True"),
        (Environment, "game", "is Environment, got 'game'"),
        (Environment, HigherLower, "is Environment, got `HigherLower`"),
        (RewardFn, 1.0, "is RewardFn, got 1.0"),
    ],
)
def test_another_value_is_told_with_what_is_taken(hint: Any, value: object, said: str) -> None:
    assert misfit(hint, value) == said


def test_a_long_value_is_cut_in_a_message() -> None:
    assert shown([0] * 8192) == "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,..."


def test_a_value_of_several_lines_is_on_one() -> None:
    class Table:
        def __repr__(self) -> str:
            return "1 2\n3 4"

    assert shown(Table()) == "1 2 3 4"


def test_an_object_is_named_by_its_class_and_not_by_its_address() -> None:
    class Server: ...

    assert shown(Server()) == "a `Server`"
    assert shown(lambda: None) == "`<lambda>`"


def test_an_option_whose_type_only_checkers_see_takes_any_value() -> None:
    @pipeline
    def loop(rows: Annotated[int, count("rows")] = 4) -> None:
        s = Start()
        micro = micro_pack(shard(s.rows(), on=s.actor), max_tokens=4096)
        s.policy.close(sync(s.actor.train(s.policy.move, micro.loss(scaled(rows))), s.engine))

    assert loop().warnings == ()
