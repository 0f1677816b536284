"""A tool in the turn loop: calls are answered, what is no call is the answer."""

from __future__ import annotations

import asyncio

import pytest

from operators.calculator import Calculator
from operators.environment import Reply
from rlflow.errors import DataError


def play(prompt: str, answer: str, said: list[str], **rules: float) -> list[Reply]:
    async def played() -> list[Reply]:
        start = await Calculator(**rules).reset(prompt, answer, seed=0)  # type: ignore[arg-type]
        return [await start.episode.step(text) for text in said]

    return asyncio.run(played())


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("84:12", "7"),
        (":", "7"),
        ("84 : 12 please", "7"),
        ("10x", "120"),
        ("x3", "252"),
        ("-", "72"),
        ("+", "96"),
        ("1-9", "-8"),
        ("5:0", "no"),
    ],
)
def test_a_call_is_computed_and_numbers_left_out_are_those_of_the_question(call: str, result: str) -> None:
    assert play("84 over 12? ", "7", [call]) == [Reply(f"={result}", reward=0.1)]


def test_the_answer_ends_the_episode() -> None:
    assert play("84 over 12? ", "7", [":", "7"]) == [Reply("=7", reward=0.1), Reply(reward=1.0, done=True)]
    assert play("84 over 12? ", "7", [":", "8"])[1] == Reply(reward=0.0, done=True)


def test_an_answer_at_once_is_one_too() -> None:
    assert play("84 over 12? ", "7", ["7 "]) == [Reply(reward=1.0, done=True)]
    assert play("84 over 12? ", "7", ["who knows"]) == [Reply(reward=0.0, done=True)]


def test_after_so_many_calls_another_one_is_an_answer() -> None:
    assert play("9 minus 2? ", "7", ["+", "-", "7"], calls=2) == [Reply("=11", reward=0.1), Reply("=7"), Reply(reward=1.0, done=True)]
    assert play("9 minus 2? ", "7", ["-", "7-0"]) == [Reply("=7", reward=0.1), Reply(reward=1.0, done=True)]


@pytest.mark.parametrize(("prompt", "answer"), [("84? ", "7"), ("1 and 2 and 3? ", "7"), ("84 over 12? ", "seven")])
def test_a_row_that_is_no_calculation_is_refused(prompt: str, answer: str) -> None:
    with pytest.raises(DataError, match="Calculator needs a question about two numbers and an integer as its answer"):
        play(prompt, answer, [])


def test_no_calls_are_refused() -> None:
    with pytest.raises(DataError, match=r"calls=0"):
        Calculator(calls=0)
