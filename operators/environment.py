"""What answers the model's turns on the rollout side. No field of the graph: an environment is configuration.

    start = await environment.reset(prompt, answer, seed=...)       one episode a trajectory; start.text follows the prompt
    model: text ──await start.episode.step(text)──▶ Reply(text, reward, done) ──▶ the next turn's text, or the end
    await start.episode.close()                                     at the end, whatever it was

Both calls have a time limit, and each episode an event loop of its own (lanes.py), so that a call that blocks stops nobody else.
A reset that fails is tried again, as nothing has happened yet; a step never is: it may have changed the world. What then fails
is the trajectory, which the run samples anew from a fresh reset.

`HigherLower`: the row's answer is a secret number, the model guesses, the environment says which way to go.

    "guess 0-9: "   and the row's answer, the secret, is 6
    model "3"       Reply(" higher\\n")
    model "7"       Reply(" lower\\n")
    model "6"       Reply(reward=1.0, done=True)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from rlflow.errors import DataError

__all__ = ["Environment", "Episode", "HigherLower", "HigherLowerEpisode", "Reply", "Start"]

_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class Reply:
    """What an environment says to a turn of the model. text: its own turn, not empty unless `done`. reward: of this step.

    done: the episode is over. A text beside it is read by nobody.
    state: the state in which the model's next turn begins, by a name: turns of a prompt that begin in equal states may be compared with
    each other (`gigpo`). None: only turns before which exactly the same was said begin in the same state.
    """

    text: str = ""
    reward: float = 0.0
    done: bool = False
    state: str | None = None


class Episode(Protocol):
    """One trajectory's state in its environment. Its calls come one after the other, on one event loop."""

    async def step(self, text: str) -> Reply:
        """The model said `text`."""
        ...

    async def close(self) -> None:
        """Nothing more will be said: let go of what is held."""
        ...


@dataclass(frozen=True)
class Start:
    """An episode that has begun, and what the environment says after the prompt, before the model's first turn. state: as in `Reply`."""

    episode: Episode
    text: str = ""
    state: str | None = None


class Environment(Protocol):
    """Makes episodes. A frozen dataclass of plain data, so that it can be written into the plan."""

    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        """An episode for one trajectory of the row (prompt, answer); `seed` is all the chance it may use.

        Equal arguments and equal texts give equal replies: where a trajectory forks, each branch plays its own episode up to the fork.
        Raises DataError for a row that no episode can be made of: that is not tried again.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class HigherLower:
    """Guess a secret integer in at most `turns` guesses.

    After a wrong guess the reply is `higher` (the secret is) or `lower`; after text without an integer it is `unclear`.
    Each of the three is a turn used up. The first integer of a text counts as its guess. The reward is 1 for the secret, else 0.
    A state is what the replies have told so far: "above 3, below 7", and how many turns are left.
    With 4 turns a player who halves the range is right about every secret of up to 15 numbers.
    """

    turns: int = 4
    higher: str = " higher\n"
    lower: str = " lower\n"
    unclear: str = " say a number\n"

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise DataError(f"HigherLower(turns={self.turns}): give at least one turn")

    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        """Raises DataError if the row's answer is no integer. There is no chance in this game: `seed` is not used."""
        if not _INTEGER.fullmatch(answer.strip()):
            raise DataError(f"HigherLower needs an integer as the row's answer, got {answer!r} for the prompt {prompt!r}")
        episode = HigherLowerEpisode(self, int(answer))
        return Start(episode, state=episode.state)


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
    def state(self) -> str:
        known = [guess for guess in self.guesses if guess is not None]
        above = max((guess for guess in known if guess < self.secret), default="-")
        below = min((guess for guess in known if guess > self.secret), default="-")
        return f"above {above}, below {below}, {self.rules.turns - len(self.guesses)} left"

    @property
    def over(self) -> bool:
        return self.right or len(self.guesses) == self.rules.turns

    async def step(self, text: str) -> Reply:
        if self.over:
            raise DataError(f"the game about {self.secret} is over after {len(self.guesses)} guesses; start another episode")
        found = _INTEGER.search(text)
        guess = int(found.group()) if found else None
        self.guesses.append(guess)
        if self.over:
            return Reply(reward=float(self.right), done=True)
        if guess is None:
            return Reply(self.rules.unclear, state=self.state)
        return Reply(self.rules.higher if guess < self.secret else self.rules.lower, state=self.state)

    async def close(self) -> None:
        """A game holds nothing."""
