"""The guessing game, turn by turn."""

from __future__ import annotations

import pytest

from operators.environment import Environment, HigherLower
from rlflow.errors import DataError


def play(secret: str, guesses: list[str], turns: int = 4) -> tuple[list[str | None], float]:
    environment: Environment = HigherLower(turns=turns)
    episode = environment.start("guess 0-9: ", secret, seed=0)
    replies = [episode.reply(guess) for guess in guesses]
    return replies, episode.score()


def test_it_says_which_way_to_go_and_ends_when_right() -> None:
    assert play("6", ["3", "7", "6"]) == ([" higher\n", " lower\n", None], 1.0)


def test_right_at_once() -> None:
    assert play("6", ["6"]) == ([None], 1.0)


def test_it_ends_when_the_turns_are_used_up() -> None:
    assert play("6", ["1", "2"], turns=2) == ([" higher\n", None], 0.0)


def test_right_at_the_last_turn_counts() -> None:
    assert play("6", ["1", "6"], turns=2) == ([" higher\n", None], 1.0)


def test_text_without_a_number_uses_up_a_turn() -> None:
    assert play("6", ["", "no", "6"]) == ([" say a number\n", " say a number\n", None], 1.0)


def test_the_first_integer_is_the_guess() -> None:
    assert play("-6", ["is it -7 or -6?", "-6"]) == ([" higher\n", None], 1.0)


def test_an_unfinished_game_scores_zero() -> None:
    assert play("6", ["5"])[1] == 0.0


def test_trajectories_of_one_prompt_do_not_share_a_game() -> None:
    environment = HigherLower(turns=2)
    first, second = (environment.start("guess 0-9: ", "6", seed=seed) for seed in (0, 1))
    first.reply("1")
    assert (second.reply("1"), second.reply("6"), second.score(), first.score()) == (" higher\n", None, 1.0, 0.0)


def test_a_reply_after_the_end_is_an_error() -> None:
    with pytest.raises(DataError, match="the game about 6 is over after 1 guesses"):
        play("6", ["6", "6"])


@pytest.mark.parametrize("answer", ["six", "", "6.5"])
def test_a_row_whose_answer_is_no_integer_is_refused(answer: str) -> None:
    with pytest.raises(DataError, match="needs an integer as the row's answer"):
        HigherLower().start("guess 0-9: ", answer, seed=0)


def test_no_turns_are_refused() -> None:
    with pytest.raises(DataError, match=r"turns=0"):
        HigherLower(turns=0)


@pytest.mark.parametrize(("low", "high"), [(0, 9), (3, 6), (1, 7)])
def test_halving_the_range_is_always_right_in_four_turns(low: int, high: int) -> None:
    for secret in range(low, high + 1):
        episode, least, most = HigherLower().start("", str(secret), seed=0), low, high
        while (reply := episode.reply(str(middle := (least + most) // 2))) is not None:
            least, most = (middle + 1, most) if "higher" in reply else (least, middle - 1)
        assert episode.score() == 1.0
