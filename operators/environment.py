"""What answers the model's turns on the rollout side. No field of the graph: an environment is configuration.

    episode = environment.start(prompt, answer, seed=...)      one a trajectory
    model: text ──episode.reply(text)──▶ the next turn's text, or None: the episode is over ──▶ episode.score()

`Dialogue` is what engines hold of an episode: it checks what the environment says, and ends it after `max_turns` turns.

`HigherLower`: the row's answer is a secret number, the model guesses, the environment says which way to go.

    "guess 0-9: "   and the row's answer, the secret, is 6
    model "3"       reply " higher\\n"
    model "7"       reply " lower\\n"
    model "6"       reply None, score 1
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from rlflow.errors import DataError, OperatorError

from .encoding import encode

__all__ = ["Dialogue", "Environment", "Episode", "HigherLower", "HigherLowerEpisode"]

ResultT = TypeVar("ResultT")

_INTEGER = re.compile(r"-?[0-9]+")


class Episode(Protocol):
    """One trajectory's state in its environment; lives in the thread that samples the trajectory."""

    def reply(self, text: str) -> str | None:
        """The environment's turn after the model said `text`: not empty; None when there is nothing more to say."""
        ...

    def score(self) -> float:
        """How well it went so far, 0 .. 1."""
        ...


class Environment(Protocol):
    """Makes episodes. A frozen dataclass of plain data, so that it can be written into the plan."""

    def start(self, prompt: str, answer: str, *, seed: int) -> Episode:
        """An episode for one trajectory of the row (prompt, answer); `seed` is all the chance it may use."""
        ...


class Dialogue:
    """One episode as an engine holds it: the model's text in, the ids of the reply out.

    place: of the trajectory, for errors. max_turns: of the model; an episode still going after them ends (`cut`).
    Raises OperatorError naming the environment, the place and what the model said where the environment raises, and DataError
    where it replies with something else than text that the tokenizer has tokens for, or None.
    """

    def __init__(
        self, environment: Environment, tokenizer: Any, prompt: str, answer: str, *, seed: int, place: str, max_turns: int
    ) -> None:
        if max_turns < 1:
            raise DataError(f"max_turns={max_turns}: give at least one turn")
        self._name, self._tokenizer, self._place, self._max_turns = type(environment).__name__, tokenizer, place, max_turns
        self.turns = 0
        self.cut = False
        start = f"{self._name}.start of the prompt {prompt[:40]!r}"
        self._episode: Episode = self._asked(lambda: environment.start(prompt, answer, seed=seed), start)

    def reply(self, text: str) -> list[int] | None:
        """Ids of the environment's turn after the model said `text`; None: the episode is over, or was cut."""
        self.turns += 1
        what = f"{self._name}.reply to turn {self.turns}, {text[:40]!r}"
        reply: Any = self._asked(lambda: self._episode.reply(text), what)
        if reply is None:
            return None
        if not isinstance(reply, str) or not reply:
            raise DataError(f"{self._place}: {what} is {reply!r}; return text of at least one character, or None to end the episode")
        try:
            ids = encode(self._tokenizer, reply)
        except DataError as error:
            raise DataError(f"{self._place}: {what} is {reply[:40]!r}: {error}") from error
        if not ids:
            raise DataError(f"{self._place}: {what} is {reply[:40]!r}, which the tokenizer has no tokens for")
        self.cut = self.turns >= self._max_turns
        return None if self.cut else ids

    def _asked(self, call: Callable[[], ResultT], what: str) -> ResultT:
        try:
            return call()
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
            raise OperatorError(f"{self._place}: {what} raised {said}") from error


@dataclass(frozen=True, kw_only=True)
class HigherLower:
    """Guess a secret integer in at most `turns` guesses.

    After a wrong guess the reply is `higher` (the secret is) or `lower`; after text without an integer it is `unclear`.
    Each of the three is a turn used up. The first integer of a text counts as its guess. With 4 turns a player who halves
    the range is right about every secret of up to 15 numbers.
    """

    turns: int = 4
    higher: str = " higher\n"
    lower: str = " lower\n"
    unclear: str = " say a number\n"

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise DataError(f"HigherLower(turns={self.turns}): give at least one turn")

    def start(self, prompt: str, answer: str, *, seed: int) -> HigherLowerEpisode:
        """Raises DataError if the row's answer is no integer. There is no chance in this game: `seed` is not used."""
        if not _INTEGER.fullmatch(answer.strip()):
            raise DataError(f"HigherLower needs an integer as the row's answer, got {answer!r} for the prompt {prompt!r}")
        return HigherLowerEpisode(self, int(answer))


@dataclass
class HigherLowerEpisode:
    """Guessing → right | out of turns."""

    rules: HigherLower
    secret: int
    guesses: list[int | None] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return bool(self.guesses) and self.guesses[-1] == self.secret

    @property
    def over(self) -> bool:
        return self.right or len(self.guesses) == self.rules.turns

    def reply(self, text: str) -> str | None:
        if self.over:
            raise DataError(f"the game about {self.secret} is over after {len(self.guesses)} guesses; start another episode")
        found = _INTEGER.search(text)
        guess = int(found.group()) if found else None
        self.guesses.append(guess)
        if self.over:
            return None
        if guess is None:
            return self.rules.unclear
        return self.rules.higher if guess < self.secret else self.rules.lower

    def score(self) -> float:
        """1 once the secret was said, else 0."""
        return float(self.right)
