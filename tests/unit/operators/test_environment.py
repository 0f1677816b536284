"""The guessing game, turn by turn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from operators.environment import Dialogue, Environment, HigherLower
from operators.models import tokenizer_of
from rlflow.errors import DataError, OperatorError


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


# --- what an engine holds of an episode -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Says:
    """Replies with the same thing for ever; raises it if it is an exception."""

    reply_with: Any

    def start(self, prompt: str, answer: str, *, seed: int) -> Says:
        return self

    def reply(self, text: str) -> Any:
        if isinstance(self.reply_with, Exception):
            raise self.reply_with
        return self.reply_with

    def score(self) -> float:
        return 0.0


def dialogue(environment: Environment, max_turns: int = 16, answer: str = "6") -> Dialogue:
    tokenizer = tokenizer_of("tiny")
    return Dialogue(environment, tokenizer, "guess 0-9: ", answer, seed=0, place="trajectory 5.2", max_turns=max_turns)


def test_a_reply_comes_back_as_tokens() -> None:
    tokenizer = tokenizer_of("tiny")
    talk = dialogue(HigherLower())
    assert talk.reply("3") == tokenizer.encode(" higher\n").ids
    assert talk.reply("6") is None
    assert (talk.turns, talk.cut) == (2, False)


@pytest.mark.parametrize("reply", [5, b"up", ["up"], ""])
def test_a_reply_that_is_no_text_names_the_environment_the_turn_and_the_trajectory(reply: Any) -> None:
    with pytest.raises(DataError, match=re.escape(f"trajectory 5.2: Says.reply to turn 1, '3' is {reply!r}; return text")):
        dialogue(Says(reply_with=reply)).reply("3")


def test_a_reply_outside_the_alphabet_names_the_characters() -> None:
    with pytest.raises(
        DataError, match=r"trajectory 5\.2: Says\.reply to turn 1, '3' is 'é世': the tokenizer has no token for \['é', '世'\]"
    ):
        dialogue(Says(reply_with="é世")).reply("3")


def test_an_environment_that_raises_is_named_with_the_line() -> None:
    here = r"trajectory 5\.2: Says\.reply to turn 1, '3' raised RuntimeError: it broke \(.*test_environment\.py:\d+\)"
    with pytest.raises(OperatorError, match=here):
        dialogue(Says(reply_with=RuntimeError("it broke"))).reply("3")


def test_an_episode_that_does_not_start_is_named() -> None:
    with pytest.raises(
        OperatorError, match=r"trajectory 5\.2: HigherLower\.start of the prompt 'guess 0-9: ' raised DataError: HigherLower needs"
    ):
        dialogue(HigherLower(), answer="six")


def test_an_episode_without_end_is_cut() -> None:
    talk = dialogue(Says(reply_with="more\n"), max_turns=3)
    assert [talk.reply("3") is None for _ in range(3)] == [False, False, True]
    assert talk.cut


def test_an_episode_that_ends_with_the_last_turn_is_not_cut() -> None:
    talk = dialogue(HigherLower(turns=2), max_turns=2)
    assert (talk.reply("1") is None, talk.reply("2") is None, talk.cut) == (False, True, False)


def test_no_turns_of_a_dialogue_are_refused() -> None:
    with pytest.raises(DataError, match="max_turns=0: give at least one turn"):
        dialogue(HigherLower(), max_turns=0)
