"""A mistake in a plain function is told where it stands; with `__tracebackhide__` it is the caller's."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
from start import Start
from vocabulary import grpo

from rlflow import CheckFailed, operator, pipeline


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


def lags(s: Start) -> Any:
    return s.actor.log_probs(s.policy.served, s.ready.input_ids, s.ready.response_mask)


def test_a_helper_that_is_called_twice_names_both_callers() -> None:
    @pipeline
    def loop() -> None:
        s = Start()
        s.finish(s.rows())
        lags(s)
        lags(s)

    with pytest.raises(CheckFailed) as found:
        loop()
    one = next(d for d in found.value.diagnostics if d.code == "RLF204")
    called = [label.place.line for label in one.related if label.text == "called from here"]
    assert len(called) == 2
    assert called[1] == called[0] + 1


def test_the_source_of_a_notebooks_cell_is_shown() -> None:
    cell = "@pipeline\ndef loop() -> None:\n    s = Start()\n    s.finish(s.rows(s.rewards))\n"
    name = "<cell-of-a-notebook>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    there: dict[str, Any] = {"pipeline": pipeline, "Start": Start}
    exec(compile(cell, name, "exec"), there)
    with pytest.raises(CheckFailed) as found:
        there["loop"]()
    assert "4 |     s.finish(s.rows(s.rewards))" in str(found.value)


LATER = ("async def loop() -> None: ...", "def loop() -> None:\n    yield", "async def loop() -> None:\n    yield")


@pytest.mark.parametrize("body", LATER)
@pytest.mark.parametrize("mark", ["@pipeline", "@operator(per='row')"])
def test_a_function_that_does_not_run_when_it_is_called_is_refused_where_it_is_declared(mark: str, body: str) -> None:
    with pytest.raises(CheckFailed) as found:
        exec(f"{mark}\n{body}\n", {"pipeline": pipeline, "operator": operator})
    assert [d.code for d in found.value.diagnostics] == ["RLF013"]
