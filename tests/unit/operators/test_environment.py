"""The guessing game, turn by turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from operators.environment import Environment, Episode, HigherLower, Reply
from rlflow.errors import DataError

GO_ON, UP, DOWN = Reply(" say a number\n"), Reply(" higher\n"), Reply(" lower\n")
RIGHT, OVER = Reply(reward=1.0, done=True), Reply(reward=0.0, done=True)


def begun(secret: str, turns: int = 4) -> Episode:
    environment: Environment = HigherLower(turns=turns)
    return asyncio.run(environment.reset("guess 0-9: ", secret, seed=0)).episode


def said(episode: Episode, text: str) -> Reply:
    return asyncio.run(episode.step(text))


def replies(secret: str, guesses: list[str], turns: int = 4) -> list[Reply]:
    episode = begun(secret, turns)
    return [said(episode, guess) for guess in guesses]


def play(secret: str, guesses: list[str], turns: int = 4) -> list[Reply]:
    """Without the names of states."""
    return [replace(reply, state=None) for reply in replies(secret, guesses, turns)]


def test_it_says_which_way_to_go_and_ends_when_right() -> None:
    assert play("6", ["3", "7", "6"]) == [UP, DOWN, RIGHT]


def test_a_state_is_what_the_replies_have_told_and_how_many_turns_are_left() -> None:
    start = asyncio.run(HigherLower().reset("guess 0-9: ", "6", seed=0))
    assert start.state == "above -, below -, 4 left"
    assert [reply.state for reply in replies("6", ["3", "8", "what", "6"])] == [
        "above 3, below -, 3 left", "above 3, below 8, 2 left", "above 3, below 8, 1 left", None,
    ]  # fmt: skip


def test_other_ways_to_the_same_knowledge_are_the_same_state() -> None:
    assert replies("6", ["3", "8"])[-1].state == replies("6", ["8", "3"])[-1].state
    assert replies("6", ["3", "8"])[-1].state != replies("6", ["3", "9"])[-1].state


def test_right_at_once() -> None:
    assert play("6", ["6"]) == [RIGHT]


def test_it_ends_when_the_turns_are_used_up() -> None:
    assert play("6", ["1", "2"], turns=2) == [UP, OVER]


def test_right_at_the_last_turn_counts() -> None:
    assert play("6", ["1", "6"], turns=2) == [UP, RIGHT]


def test_text_without_a_number_uses_up_a_turn() -> None:
    assert play("6", ["", "no", "6"]) == [GO_ON, GO_ON, RIGHT]


def test_the_first_integer_is_the_guess() -> None:
    assert play("-6", ["is it -7 or -6?", "-6"]) == [UP, RIGHT]


def test_trajectories_of_one_prompt_do_not_share_a_game() -> None:
    first, second = begun("6", turns=2), begun("6", turns=2)
    said(first, "1")
    assert (said(second, "1").text, said(second, "6"), said(first, "2")) == (UP.text, RIGHT, OVER)


def test_a_step_after_the_end_is_an_error() -> None:
    with pytest.raises(DataError, match="the game about 6 is over after 1 guesses"):
        play("6", ["6", "6"])


@pytest.mark.parametrize("answer", ["six", "", "6.5"])
def test_a_row_whose_answer_is_no_integer_is_refused(answer: str) -> None:
    with pytest.raises(DataError, match="needs an integer as the row's answer"):
        begun(answer)


def test_no_turns_are_refused() -> None:
    with pytest.raises(DataError, match=r"turns=0"):
        HigherLower(turns=0)


@pytest.mark.parametrize(("low", "high"), [(0, 9), (3, 6), (1, 7)])
def test_halving_the_range_is_always_right_in_four_turns(low: int, high: int) -> None:
    for secret in range(low, high + 1):
        episode, least, most = begun(str(secret)), low, high
        while not (reply := said(episode, str(middle := (least + most) // 2))).done:
            least, most = (middle + 1, most) if "higher" in reply.text else (least, middle - 1)
        assert reply == RIGHT
