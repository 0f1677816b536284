"""One episode as an engine holds it: the model's text in, the ids of the reply out; errors name the trajectory and the turn.

Dialogue ──reset, tried again──▶ opening ids ──reply(text)──▶ ids | None: over      reward: of all steps so far, step_reward: of the last
   └── forked(turns): another episode of the same row, brought to that turn
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from rlflow.errors import DataError, OperatorError, WaitTimeout
from rlflow.measure import note

from .encoding import encode
from .environment import Environment, Reply
from .lanes import Died, Hung, Lane, Opening, Raised, discard, give_back, take

__all__ = ["DEFAULT_LIMITS", "Dialogue", "EnvironmentLimits"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
UTF8 = ("utf-8", "surrogatepass")  # a lone surrogate in a model's text must not end its episode


@dataclass(frozen=True, kw_only=True)
class EnvironmentLimits:
    """reset_s, step_s: seconds that a call may take; closing gets step_s too. resets: how often a reset is tried, in all.

    isolated: every episode in a process of its own, which a crash ends and a hang gets killed: as many processes as trajectories in
    flight, each of them serving one episode after the other. (Starting one takes about a second.)
    """

    reset_s: float = 60.0
    step_s: float = 60.0
    resets: int = 3
    isolated: bool = False

    def __post_init__(self) -> None:
        if not (self.reset_s > 0 and self.step_s > 0 and self.resets >= 1):
            raise DataError(f"{self}: give seconds above 0 and at least one reset")


DEFAULT_LIMITS = EnvironmentLimits()


class Dialogue:
    """An episode and the lane it lives in. A context manager: leaving it closes the episode.

    place: of the trajectory, for errors. Raises WaitTimeout for a call that does not return in its time, OperatorError for one that
    raises or ends its process, and DataError for a reply that is none: each naming the environment, the place and what the model said.
    """

    def __init__(
        self, environment: Environment, tokenizer: Any, prompt: str, answer: str, *, seed: int, place: str, limits: EnvironmentLimits
    ) -> None:
        self._made_of = (environment, tokenizer, prompt, answer, seed, place, limits)
        self._name, self._tokenizer, self._place, self._limits = type(environment).__name__, tokenizer, place, limits
        self._said: list[tuple[str, list[int] | None]] = []  # each turn of the model, and the reply to it
        self._lane: Lane | None = None
        self.reward = self.step_reward = 0.0
        self._what = f"{self._name}.reset of the prompt {prompt[:40]!r}"
        opening, self._state = self._reset(environment, prompt, answer, seed)
        try:
            self.opening = self._encoded(opening)
        except DataError:
            self._drop_lane()
            raise

    @property
    def turns(self) -> int:
        """Of the model."""
        return len(self._said)

    @property
    def state(self) -> int:
        """A number of the state in which the model's next turn begins, above 0: equal for equal states of a prompt's episodes."""
        name = self._state if self._state is not None else repr((self.opening, self._said))
        return 1 + (int.from_bytes(hashlib.blake2b(name.encode(*UTF8), digest_size=8).digest(), "little") >> 2)

    def reply(self, text: str) -> list[int] | None:
        """Ids of the environment's turn after the model said `text`; None: the episode is over."""
        self._what = f"{self._name}.step of turn {self.turns + 1}, {text[:40]!r}"
        lane = self._lane
        assert lane is not None, "the dialogue is closed"
        reply = self._checked(self._asked(lambda: lane.step(text, self._limits.step_s)))
        self.step_reward, self._state = float(reply.reward), reply.state
        self.reward += reply.reward
        ids = None if reply.done else self._encoded(reply.text)
        self._said.append((text, ids))
        return ids

    def forked(self, turns: int) -> Dialogue:
        """A fresh episode in which the model has said the same in its first `turns` turns.

        Raises OperatorError where the environment then answers otherwise.
        """
        environment, tokenizer, prompt, answer, seed, place, limits = self._made_of
        other = Dialogue(environment, tokenizer, prompt, answer, seed=seed, place=place, limits=limits)
        with contextlib.ExitStack() as failing:
            failing.enter_context(other)
            for turn, (text, ids) in enumerate(self._said[:turns], start=1):
                if other.reply(text) != ids:
                    raise OperatorError(
                        f"{self._place}: {self._name} answers turn {turn}, {text[:40]!r}, in another way when it is played again, so the "
                        "trajectory cannot fork there: its replies may depend on the row, the seed and what was said, on nothing else"
                    )
            failing.pop_all()
        return other

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """A lane is used again only after its episode was closed in time."""
        lane, self._lane = self._lane, None
        if lane is None:
            return
        try:
            failed = lane.close(self._limits.step_s)
        except (Hung, Died) as why:
            failed = Raised(str(why), row=False)
        if failed is None:
            give_back(lane)
        else:
            _log.warning("%s: %s.close raised %s", self._place, self._name, failed.said)
            discard(lane)

    # --- calls ----------------------------------------------------------------------------------------------------------------------
    def _reset(self, environment: Environment, prompt: str, answer: str, seed: int) -> Opening:
        for attempt in range(1, self._limits.resets + 1):
            lane = self._lane = take(self._limits.isolated)
            try:
                opening: Opening = self._asked(lambda lane=lane: lane.reset(environment, prompt, answer, seed, self._limits.reset_s))  # type: ignore[misc]
            except (OperatorError, WaitTimeout) as error:
                self._drop_lane()
                if attempt == self._limits.resets or isinstance(error.__cause__, DataError):
                    raise
                note("environment/resets_retried", 1.0)
                _log.warning("%s; tried again (%d of %d)", error, attempt + 1, self._limits.resets)
                continue
            return opening
        raise AssertionError("unreachable: at least one reset is tried")

    def _asked(self, call: Callable[[], T | Raised]) -> T:
        """What the environment answered; a lane in which it did not is not used again."""
        try:
            answer = call()
        except Hung as error:
            self._drop_lane()
            raise WaitTimeout(f"{self._place}: {self._what} {error}") from error
        except Died as error:
            self._drop_lane()
            raise OperatorError(f"{self._place}: {self._what} {error}") from error
        if isinstance(answer, Raised):
            refused = DataError(answer.said) if answer.row else None
            raise OperatorError(f"{self._place}: {self._what} raised {answer.said}") from refused
        return answer

    def _drop_lane(self) -> None:
        if self._lane is not None:
            discard(self._lane)
            self._lane = None

    # --- what they say --------------------------------------------------------------------------------------------------------------
    def _checked(self, reply: Any) -> Reply:
        if not isinstance(reply, Reply) or not isinstance(reply.text, str):
            raise DataError(f"{self._place}: {self._what} is {reply!r}; return Reply(text, reward, done, state)")
        if not isinstance(reply.state, str | None):
            raise DataError(f"{self._place}: {self._what} is {reply!r}; a state is named by a text, or None")
        if not reply.text and not reply.done:
            raise DataError(f"{self._place}: {self._what} is {reply!r}; say something, or end the episode with done=True")
        if isinstance(reply.reward, bool) or not isinstance(reply.reward, int | float) or not math.isfinite(reply.reward):
            raise DataError(f"{self._place}: {self._what} is {reply!r}; a reward is a finite number")
        return reply

    def _encoded(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            ids = encode(self._tokenizer, text)
        except DataError as error:
            raise DataError(f"{self._place}: {self._what} is {text[:40]!r}: {error}") from error
        if not ids:
            raise DataError(f"{self._place}: {self._what} is {text[:40]!r}, which the tokenizer has no tokens for")
        return ids
