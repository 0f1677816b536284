"""What says that a response is right: pure functions `(response_text, answer) -> score`.

    exact_match       the same text, white space aside                     1 or 0
    first_integer     the first integer of the text                        1 or 0
    last_number       the last number of the text, as a value              1 or 0
    Matches(form)     the whole text has the form of a regular expression  1 or 0
    Captures(form)    what the form finds in the text is the answer        1 or 0
    math_verify       the same mathematics (library math-verify)           1 or 0
    reasoning_gym     the task's own scorer (library reasoning-gym)        0 .. 1

They run in processes of their own (judging.py), which import this file and nothing of torch. `@needs("library")` names
what such a process imports before its first row, so that a slow import is not charged to the time of a row. A regular expression
that backtracks for ever is ended there like any verifier that hangs.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Protocol, TypeVar

from rlflow.errors import UsageError

__all__ = [
    "THINK_ANSWER",
    "Captures",
    "Matches",
    "Verifier",
    "exact_match",
    "first_integer",
    "last_number",
    "math_verify",
    "needs",
    "reasoning_gym",
]

# what DeepSeek-R1 asks for (arXiv:2501.12948, table 1): the reasoning in one pair of tags, then the answer in another
THINK_ANSWER = r"\s*<think>(?:(?!</?think>).)*</think>\s*<answer>(?:(?!</?answer>).)*</answer>\s*"

_SIGN = r"(?:(?<![0-9)])[+-])?"  # in "5-3" the dash is no sign
_INTEGER = re.compile(_SIGN + r"[0-9]+")
_NUMBER = re.compile(_SIGN + r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")


class Verifier(Protocol):
    """Scores one response; importable by name, so that another process can run it."""

    def __call__(self, response_text: str, answer: str, /) -> float: ...


VerifierT = TypeVar("VerifierT", bound=Callable[[str, str], float])


def needs(*modules: str) -> Callable[[VerifierT], VerifierT]:
    """Modules that a judging process imports before it takes rows of this verifier."""

    def mark(verifier: VerifierT) -> VerifierT:
        verifier.__needs__ = modules  # type: ignore[attr-defined]
        return verifier

    return mark


def exact_match(response_text: str, answer: str) -> float:
    """1 if both are the same words: runs of white space count as one space, outer white space as none."""
    return float(response_text.split() == answer.split())


def first_integer(response_text: str, answer: str) -> float:
    """1 if the first integer of the response is the answer: "7, since 7 > 3" is 7. `answer` must be an integer."""
    found = _INTEGER.search(response_text)
    return float(found is not None and int(found.group()) == int(answer))


def last_number(response_text: str, answer: str) -> float:
    """1 if the last number of the response has the value of the answer: "12 * 100 = 1,200.0" is 1200. `answer` must be a number."""
    found = _NUMBER.findall(response_text)
    return float(bool(found) and _value(found[-1]) == _value(answer))


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


@dataclass(frozen=True)
class Matches:
    """1 if the whole response has a form, whatever the answer is: a verifier of format, not of truth.

    form: a regular expression, matched against all of the text; `.` is any character, the end of a line too.
    Raises UsageError, where it is written, for a form that is none.

        Matches(r"-?[0-9]+")("12", "")          1
        Matches(r"-?[0-9]+")("about 12", "")    0
    """

    form: str

    def __post_init__(self) -> None:
        _compiled(self.form)

    def __call__(self, response_text: str, answer: str, /) -> float:
        return float(_compiled(self.form).fullmatch(response_text) is not None)


@dataclass(frozen=True)
class Captures:
    """1 if group 1 of the last match of a form in the response is the answer, as the same words.

    form: a regular expression with one group or more; `.` is any character. Raises UsageError for a form that is none, or has no group.

        Captures(r"<answer>(.*?)</answer>")("<answer>3</answer> no: <answer> 4 </answer>", "4")    1
    """

    form: str

    def __post_init__(self) -> None:
        if not _compiled(self.form).groups:
            raise UsageError(f"the form {self.form!r} has no group: put what is the answer into brackets, as in r'answer: ([0-9]+)'")

    def __call__(self, response_text: str, answer: str, /) -> float:
        found = [match.group(1) for match in _compiled(self.form).finditer(response_text)]
        return exact_match(found[-1] or "", answer) if found else 0.0


@cache
def _compiled(form: str) -> re.Pattern[str]:
    try:
        return re.compile(form, re.DOTALL)
    except re.error as error:
        raise UsageError(f"{form!r} is no regular expression: {error}") from error


@needs("math_verify")
def math_verify(response_text: str, answer: str) -> float:
    """1 if the response holds an expression equal to the answer; both may be plain or LaTeX, with or without \\boxed or dollars.

    The library's own timeouts (SIGALRM) are off: the judging process has one that cannot be caught.
    Raises ValueError if the answer is no mathematics.
    """
    gold = _parsed(answer if "$" in answer or "\\boxed" in answer else f"\\boxed{{{answer}}}")
    if not gold:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    _, verify = _library()
    return float(verify(gold, _parsed(response_text), timeout_seconds=None))


def _parsed(text: str) -> list[Any]:
    parse, _ = _library()
    return list(parse(text, parsing_timeout=None))


@cache
def _library() -> tuple[Callable[..., Any], Callable[..., Any]]:
    import math_verify as library

    for part in ("parser", "grader"):  # they warn that somebody must provide a timeout: judging.py does
        logging.getLogger(f"math_verify.{part}").setLevel(logging.ERROR)
    return library.parse, library.verify


@needs("reasoning_gym")
def reasoning_gym(response_text: str, answer: str) -> float:
    """The score that the task's own scorer gives, 0 .. 1.

    `answer` is the task's entry as JSON: {"question", "answer", "metadata": {"source_dataset": name of the task, ...}}.
    The response is what stands in its last <answer>...</answer>, else all of it, without outer white space.
    """
    from reasoning_gym.utils import extract_answer

    entry = json.loads(answer)
    said = extract_answer(response_text)
    return float(_scorer(entry["metadata"]["source_dataset"])(response_text.strip() if said is None else said, entry))


@cache
def _scorer(task: str) -> Callable[..., float]:
    import reasoning_gym as library

    return library.get_score_answer_fn(task)
