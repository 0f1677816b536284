"""Held-out prompts: every one of them is answered `samples` times and judged, each answer once, or the evaluation fails by name.

    items = prompts x samples ──answer, some attempts each──▶ texts ──reward; what it fails on alone, some attempts each──▶ right or not
        reward    right answers / all            avg@n    the same, by its name, where n > 1
        pass@k    the chance that of k answers to a prompt one is right

Nothing here knows an engine: `Exam` is handed who answers, one item at a time, or all of them at once.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rlflow.errors import DataError, EngineError, OperatorError, RlflowError, WaitTimeout
from rlflow.measure import collected, note

from .baselines import blind_baselines
from .records import Prompts

if TYPE_CHECKING:
    from .reward import RewardFn

__all__ = ["Answer", "Exam", "HeldOut", "Item", "pass_at_k"]

X = TypeVar("X")
THREADS = 64  # items that are answered at a time, one by one

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How held-out prompts are asked.

    samples: answers to each. temperature: 0 is greedy. pass_at: the k of pass@k, () for 1, 2, 4, ... up to `samples`. attempts: at an item.
    failing: what an item is worth whose environment or verifier fails on every attempt: "fail" refuses the evaluation, "zero" counts a
    wrong answer, told in the metrics (`failed/...`) and the log. An engine that fails on every attempt always refuses it.
    """

    samples: int = 1
    temperature: float = 0.0
    pass_at: tuple[int, ...] = ()
    attempts: int = 3
    failing: Literal["fail", "zero"] = "fail"

    def __post_init__(self) -> None:
        if self.samples < 1 or self.attempts < 1:
            raise DataError(f"evaluate(samples={self.samples}, attempts={self.attempts}): give at least one of each")
        if self.samples > 1 and self.temperature == 0:
            raise DataError(f"evaluate(samples={self.samples}): greedy answers are all the same; give a temperature above 0, such as 1.0")
        if wrong := [k for k in self.pass_at if not 1 <= k <= self.samples]:
            raise DataError(f"evaluate(samples={self.samples}, pass_at={self.pass_at}): pass@{wrong[0]} is of 1 to {self.samples} answers")

    @property
    def tries(self) -> tuple[int, ...]:
        """The k of pass@k."""
        return self.pass_at or tuple(2**i for i in range(self.samples.bit_length()))


@dataclass(frozen=True)
class Item:
    """One answer to be given: the sample-th to the prompt in a row."""

    row: int
    uid: int
    sample: int

    def __str__(self) -> str:
        return f"held-out prompt {self.uid}" + (f", sample {self.sample}" if self.sample else "")


@dataclass(frozen=True)
class Answer:
    """text: what was said last; reward: what the environment gave, if there is one."""

    text: str
    reward: float = 0.0


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): an unbiased estimate, of c right answers in n, of the chance that one of k is right.

    Chen et al. 2021 (arXiv:2107.03374), eq. 1.

        n = 4, c = 1, k = 2: 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6 = 0.5
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


AtOnce = Callable[[], list[Answer | None]]


class Exam:
    """One evaluation. Raises OperatorError or EngineError naming the first item that failed on every attempt."""

    def __init__(self, prompts: Prompts, how: HeldOut, *, with_episodes: bool) -> None:
        self.prompts, self.how, self.with_episodes = prompts, how, with_episodes
        uids = [int(uid) for uid in prompts.uid.tolist()]
        self.items = [Item(row, uid, sample) for row, uid in enumerate(uids) for sample in range(how.samples)]

    def numbers(self, answer: Callable[[Item], Answer], at_once: AtOnce | None, reward: RewardFn) -> dict[str, float]:
        """What it is worth: reward, prompts, avg@n and pass@k; the baselines of the prompts, or the mean reward of the episodes.

        at_once: answers all items in their order, None for those that it could not; they are asked one by one.
        """
        answers = self._answers(answer, at_once)
        right = self._judged([one.text for one in answers], reward)
        found = {"reward": math.fsum(right) / len(right), "prompts": float(len(self.prompts.answer))}
        if self.how.samples > 1:
            found |= {f"avg@{self.how.samples}": found["reward"]} | self._passes(right)
        if self.with_episodes:
            return found | {"episode_reward": math.fsum(one.reward for one in answers) / len(answers)}
        return found | baselines_of(self.prompts)

    def _passes(self, right: Sequence[float]) -> dict[str, float]:
        n = self.how.samples
        counts = [int(sum(right[i : i + n])) for i in range(0, len(right), n)]
        return {f"pass@{k}": math.fsum(pass_at_k(n, c, k) for c in counts) / len(counts) for k in self.how.tries}

    # --- answers ----------------------------------------------------------------------------------------------------------------------
    def _answers(self, answer: Callable[[Item], Answer], at_once: AtOnce | None) -> list[Answer]:
        given: list[Answer | None] = [None] * len(self.items)
        if at_once is not None:
            try:
                given = at_once()
            except EngineError as error:
                _log.warning("%d held-out prompts at once: %s; asked one by one", len(self.items), error)
        left = [item for item, one in zip(self.items, given, strict=True) if one is None]
        rest = iter(self._one_by_one(left, lambda item: self._attempted(item, lambda: answer(item), Answer("", 0.0), "environment")))
        return [next(rest) if one is None else one for one in given]

    def _one_by_one(self, items: Sequence[Item], do: Callable[[Item], X]) -> list[X]:
        """In the order of the items. What is noted on the way is noted here."""

        def noting(item: Item, context: Context) -> tuple[X, dict[str, float]]:
            collected()
            return context.run(do, item), collected()

        pool = ThreadPoolExecutor(max(1, min(THREADS, len(items))), thread_name_prefix="held-out")
        try:
            done = list(pool.map(noting, items, [copy_context() for _ in items]))  # the attempt that may be given up is known there too
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after a failure: the others are nobody's any more
        for name, value in (pair for _, numbers in done for pair in numbers.items()):
            note(name, value)
        return [result for result, _ in done]

    def _attempted(self, item: Item, do: Callable[[], X], worst: X, what: str) -> X:
        """The first attempt that succeeds; else `worst`, or the error by the item's name."""
        error: RlflowError | None = None
        for attempt in range(1, self.how.attempts + 1):
            try:
                return do()
            except (OperatorError, WaitTimeout, EngineError) as raised:
                _log.warning("%s, attempt %d of %d: %s", item, attempt, self.how.attempts, raised)
                error = raised
        assert error is not None  # `attempts` is at least 1
        if self.how.failing == "fail" or isinstance(error, EngineError):
            kind = EngineError if isinstance(error, EngineError) else OperatorError
            raise kind(f"{item} failed on {self.how.attempts} attempts, the last one: {error}") from error
        note(f"failed/{what}", 1.0)
        return worst

    # --- verdicts ---------------------------------------------------------------------------------------------------------------------
    def _judged(self, texts: Sequence[str], reward: RewardFn) -> list[float]:
        """1 or 0 an item. A verifier that failed on one is asked about every item alone, to find out which."""
        answers = [self.prompts.answer[item.row] for item in self.items]
        try:
            return _verdicts(texts, answers, reward)
        except OperatorError as error:
            _log.warning("the reward of %d held-out answers: %s; judged one by one", len(texts), error)
        alone = [partial(_verdicts, [text], [answer], reward) for text, answer in zip(texts, answers, strict=True)]
        return [self._attempted(item, ask, [0.0], "verifier")[0] for item, ask in zip(self.items, alone, strict=True)]


def _verdicts(texts: Sequence[str], answers: Sequence[str], reward: RewardFn) -> list[float]:
    """Judged as one-token responses, since only right or wrong is asked for. Raises OperatorError if the verifier failed on one."""
    import torch

    before = collected()
    scores = reward(list(texts), list(answers), torch.ones(len(texts), 1, dtype=torch.bool))
    noted = collected()
    for name, value in before.items():
        note(name, value)
    failed = {name: value for name, value in noted.items() if name.startswith("failed/")}
    if failed:
        told = ", ".join(f"{name.removeprefix('failed/')} on {value:g}" for name, value in failed.items())
        raise OperatorError(f"its verifier failed ({told} of {len(texts)}): the log says where")
    for name, value in noted.items():
        note(name, value)
    return [float(value) for value in scores.is_correct.tolist()]


def baselines_of(prompts: Prompts) -> dict[str, float]:
    """What answers score that ignore the question, or its operands."""
    found: Any = blind_baselines([_plain(answer) for answer in prompts.answer], prompts.template)
    return {"best_constant": found.best_constant, "best_blind": found.best_blind}


def _plain(answer: str) -> str:
    """The answer itself, where it is an entry of reasoning-gym."""
    try:
        entry = json.loads(answer)
    except ValueError:
        return answer
    return str(entry["answer"]) if isinstance(entry, dict) and "answer" in entry else answer
