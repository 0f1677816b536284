"""Rewards: what a verifier says of each row, put where the loss looks for it.

    response_text, answer ──verifier (verifiers.py) in a judging process (judging.py)──▶ one score a row
        token_level_scores   the score at the last position with response_mask = 1, 0 elsewhere       (raw)
        is_correct           1 if the score is full (1), else 0; also for a row that trains nothing   (raw)
    episode_reward, what an environment gave ──episode_scores──▶ the same two fields
    token_level_scores ──shape_rewards | length_penalty | lengths.py, shaping.py──▶ token_level_rewards   (shaped)

    mixture.py      several rewards of one row, by name        tasks.py    a reward for each task of a batch
    chat_judge.py   a language model that judges               judge_agreement.py    how far any of them can be trusted

Filters read the raw scores, estimators the shaped rewards. A blank response scores 0 whatever the answer is. A row whose
verifier hangs, crashes or raises scores 0, is named in the log and counted in the metrics: failed/timeout, failed/crash,
failed/error, failed/gave_up. A verifier that fails on every row ends the run: it would train on nothing but noise.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from rlflow import State, Tensor, operator
from rlflow.errors import DataError, OperatorError
from rlflow.extras import require
from rlflow.measure import note

from . import verifiers
from .fields import Answer, EpisodeReward, ResponseMask, ResponseText, TokenRewards, TokenScores
from .judging import Verdict, name_of, score_texts
from .records import Scores
from .verifiers import Verifier

__all__ = [
    "RewardFn",
    "captures",
    "episode_scores",
    "exact_match",
    "integer_match",
    "last_token",
    "length_penalty",
    "matches",
    "math_reward",
    "number_match",
    "reasoning_gym_reward",
    "scores_of",
    "shape_rewards",
    "think_answer",
    "verified",
    "verify",
]

_log = logging.getLogger(__name__)

HOPELESS = 4  # rows in a row: one bad row alone, as in a reward of single trajectories, does not condemn a verifier
_failed_in_a_row: Counter[str] = Counter()  # by verifier; over calls, as a call may hold a single row
FAILED = (State("failed_in_a_row", 8, in_checkpoint=False),)


class RewardFn(Protocol):
    """What a pipeline takes as `reward`: an operator of this file, or a user's function of operators."""

    def __call__(self, response_text: ResponseText, answer: Answer, response_mask: ResponseMask) -> Scores: ...


@operator(per="row", state=FAILED)
def exact_match(
    response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """1 for the same words as the answer."""
    return verify(verifiers.exact_match, response_text, answer, response_mask, timeout_s=timeout_s, workers=workers)


@operator(per="row", state=FAILED)
def integer_match(
    response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """1 if the first integer of the response is the answer."""
    return verify(verifiers.first_integer, response_text, answer, response_mask, timeout_s=timeout_s, workers=workers)


@operator(per="row", state=FAILED)
def number_match(
    response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """1 if the last number of the response has the value of the answer."""
    return verify(verifiers.last_number, response_text, answer, response_mask, timeout_s=timeout_s, workers=workers)


@operator(per="row", state=FAILED)
def math_reward(
    response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """1 for an expression equal to the answer (math-verify). Raises UsageError without the extra `rewards`."""
    require("math_verify", extra="rewards", what="math_reward")
    return verify(verifiers.math_verify, response_text, answer, response_mask, timeout_s=timeout_s, workers=workers)


@operator(per="row", state=FAILED)
def reasoning_gym_reward(
    response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """0 .. 1 by the task's own scorer (reasoning-gym); `answer` is the task's entry as JSON.

    Raises UsageError without the extra `rewards`.
    """
    require("reasoning_gym", extra="rewards", what="reasoning_gym_reward")
    return verify(verifiers.reasoning_gym, response_text, answer, response_mask, timeout_s=timeout_s, workers=workers)


@operator(per="row", state=FAILED)
def verified(
    response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, by: Verifier, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """What the verifier `by` says: a function at the top of a module, or a frozen dataclass that can be called."""
    return verify(by, response_text, answer, response_mask, timeout_s=timeout_s, workers=workers)


def matches(form: str, *, timeout_s: float = 5.0) -> RewardFn:
    """A reward: 1 if the whole response has the form of a regular expression (`verifiers.Matches`), whatever the answer is.

    A form that takes more than timeout_s on a row (nested repetitions may) scores 0 there and is counted as failed/timeout.
    """
    return partial(verified, by=verifiers.Matches(form), timeout_s=timeout_s)


def captures(form: str, *, timeout_s: float = 5.0) -> RewardFn:
    """A reward: 1 if what a regular expression finds last (its group 1) is the answer (`verifiers.Captures`)."""
    return partial(verified, by=verifiers.Captures(form), timeout_s=timeout_s)


think_answer = matches(verifiers.THINK_ANSWER)  # <think>...</think> <answer>...</answer>, and nothing besides


def verify(
    verifier: Verifier, response_text: list[str], answer: list[str], response_mask: Tensor, *, timeout_s: float = 5.0, workers: int = 2
) -> Scores:
    """The body of every reward above, for an operator of your own around your own verifier.

    response_mask: flag[B, R]. Raises DataError naming the row for a score that is no finite number; OperatorError if the
    verifier failed (raised, hung, crashed) on all rows of the call, and on the last four that it was asked about.
    """
    if len(response_text) != response_mask.shape[0]:
        raise DataError(f"{len(response_text)} responses but a response_mask of {response_mask.shape[0]} rows; give the same rows of both")
    verdicts = score_texts(verifier, response_text, answer, timeout_s=timeout_s, workers=workers)
    return scores_of(name_of(verifier), response_text, verdicts, response_mask)


def scores_of(name: str, response_text: Sequence[str], verdicts: Sequence[Verdict], response_mask: Tensor) -> Scores:
    """Verdicts where the loss looks for them, with their failures told by the name of what judged. Raises OperatorError as `verify`."""
    _report(name, response_text, verdicts)
    scores = [verdict.score for verdict in verdicts]
    return Scores(
        token_level_scores=last_token(response_mask).float() * _column(scores, response_mask)[:, None],
        is_correct=_column([float(score >= 1.0) for score in scores], response_mask),
    )


@operator(per="row")
def episode_scores(episode_reward: EpisodeReward, response_mask: ResponseMask) -> Scores:
    """What the environment gave on the way to each leaf; correct is 1 or more. Raises DataError for one that is not finite."""
    finite = episode_reward.isfinite()
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise DataError(f"the environment gave row {row} the reward {float(episode_reward[row])}; a reward is a finite number")
    return Scores(
        token_level_scores=last_token(response_mask).float() * episode_reward[:, None], is_correct=(episode_reward >= 1.0).float()
    )


@operator(per="row")
def shape_rewards(token_level_scores: TokenScores) -> TokenRewards:
    """Train on the scores as they are."""
    return token_level_scores.clone()


@operator(per="row")
def length_penalty(token_level_scores: TokenScores, response_mask: ResponseMask, *, limit: int, per_token: float) -> TokenRewards:
    """Take `per_token` off for each trained token beyond `limit`, at the last trained token.

    limit=4, per_token=0.1: a score of 1 after 6 tokens becomes 0.8.
    """
    excess = (response_mask.sum(-1) - limit).clamp(min=0).to(token_level_scores.dtype)
    return token_level_scores - last_token(response_mask).to(token_level_scores.dtype) * (excess * per_token)[:, None]


def last_token(response_mask: Tensor) -> Tensor:
    """Where the score of a row sits, flag[B, R]: True at the last position of each row where the mask is, nowhere in a row without one."""
    still_to_come = response_mask.long().flip(-1).cumsum(-1).flip(-1)
    return response_mask.bool() & (still_to_come == 1)


def _column(values: list[float], like: Tensor) -> Tensor:
    import torch  # not at the top: `rlflow check` reads this file and needs no torch

    return torch.tensor(values, dtype=torch.float32, device=like.device)


def _report(name: str, texts: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """Failures to the metrics and the log. Raises OperatorError if nothing but failures came back."""
    failed = [(row, verdict) for row, verdict in enumerate(verdicts) if verdict.failed]
    for reason, count in Counter(verdict.reason for _, verdict in failed).items():
        note(f"failed/{reason}", float(count))
    asked = sum(bool(text.strip()) for text in texts)
    if len(failed) < asked:
        _failed_in_a_row[name] = 0
    if not failed:
        return
    row, first = failed[0]
    where = f"row {row} ({texts[row][:40]!r}): {first.reason}, {first.detail}"
    _log.warning("%s failed on %d of %d rows, which score 0; %s", name, len(failed), len(verdicts), where)
    if len(failed) == asked:
        _failed_in_a_row[name] += asked
        if _failed_in_a_row[name] >= HOPELESS:
            raise OperatorError(
                f"{name} failed on all of the {asked} rows of this call, so that every reward is 0 for no fault of the policy; {where}. "
                "A verifier returns 0 for an answer that it cannot read, and raises for what must not happen"
            )
