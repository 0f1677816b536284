"""What answers the model's turns on the rollout side. No field of the graph: an environment is configuration.

    episode = environment.start(prompt, answer, seed=...)      one a trajectory
    model: text ──episode.reply(text)──▶ the next turn's text, or None: the episode is over ──▶ episode.score()

`HigherLower`: the row's answer is a secret number, the model guesses, the environment says which way to go.

    "guess 0-9: "   and the row's answer, the secret, is 6
    model "3"       reply " higher\\n"
    model "7"       reply " lower\\n"
    model "6"       reply None, score 1
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from rlflow.errors import DataError

__all__ = ["Environment", "Episode", "HigherLower", "HigherLowerEpisode"]

_INTEGER = re.compile(r"-?[0-9]+")


class Episode(Protocol):
    """One trajectory's state in its environment; lives in the thread that samples the trajectory."""

    def reply(self, text: str) -> str | None:
        """The environment's turn after the model said `text`; None when there is nothing more to say."""
        ...

    def score(self) -> float:
        """How well it went so far, 0 .. 1."""
        ...


class Environment(Protocol):
    """Makes episodes. A frozen dataclass of plain data, so that it can be written into the plan."""

    def start(self, prompt: str, answer: str, *, seed: int) -> Episode:
        """An episode for one trajectory of the row (prompt, answer); `seed` is all the chance it may use."""
        ...


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
