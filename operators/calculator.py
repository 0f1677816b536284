"""An environment that is a tool: the model may let it compute, and then answers.

"84 over 12? "   and the row's answer is 7
model "84:12"    a call: Reply("=7", reward=0.1)
model "7"        no call: the answer, Reply(reward=1.0, done=True)
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from rlflow.errors import DataError

from .environment import Reply, Start

__all__ = ["Calculator", "CalculatorEpisode"]

_CALL = re.compile(r"(\d{1,9})?\s*([-+x:])\s*(\d{1,9})?")
_NUMBER = re.compile(r"-?\d+")
_COMPUTE = {"+": operator.add, "-": operator.sub, "x": operator.mul, ":": operator.floordiv}


@dataclass(frozen=True, kw_only=True)
class Calculator:
    """+, -, x and : of two numbers; a number that a call leaves out is that of the question: ":" is "84:12" where it asks "84 over 12? ".

    calls: of an episode; after them, or at a text without one, what is said is the answer. The reward is 1 for the right one and
    `call_reward` for an episode in which the calculator was used: a policy that never tries it would not find out what it is good for.
    """

    calls: int = 1
    call_reward: float = 0.1

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise DataError(f"Calculator(calls={self.calls}): give at least one call")

    async def reset(self, prompt: str, answer: str, *, seed: int) -> Start:
        """Raises DataError for a question that does not hold two numbers, or an answer that is no integer."""
        numbers = [int(found) for found in re.findall(r"\d+", prompt)]
        if len(numbers) != 2 or not _NUMBER.fullmatch(answer.strip()):
            raise DataError(f"Calculator needs a question about two numbers and an integer as its answer, got {prompt!r} and {answer!r}")
        return Start(CalculatorEpisode(self, numbers[0], numbers[1], int(answer)))


@dataclass
class CalculatorEpisode:
    """Calling → answered."""

    rules: Calculator
    left: int
    right: int
    answer: int
    used: int = 0

    async def step(self, text: str) -> Reply:
        call = _CALL.search(text) if self.used < self.rules.calls else None
        if call is None:
            said = _NUMBER.search(text)
            return Reply(reward=float(said is not None and int(said.group()) == self.answer), done=True)
        self.used += 1
        left, right = (int(given) if given else known for given, known in ((call[1], self.left), (call[3], self.right)))
        result = "no" if call[2] == ":" and not right else _COMPUTE[call[2]](left, right)
        return Reply(f"={result}", reward=self.rules.call_reward if self.used == 1 else 0.0)

    async def close(self) -> None:
        """A calculator holds nothing."""
