"""A reward of several named parts: each is judged for itself, and told for itself.

    mixture(correct=(integer_match, 1.0), format=(matches(r"-?[0-9]+"), 0.1))

    response_text, answer ─┬─ correct ──▶ scores ─┐
                           └─ format ───▶ scores ─┴─ add_part ─▶ token_level_scores = Σ weight · score     (raw, as every part is)
                                is_correct of one part, never of the sum: what filters, pass rates and the printed reward go by

It is a function of operators: the trace goes through it, so that every part is a node of the graph with its own failures, and the
check covers it. A part is whatever a pipeline takes as `reward`, also one with a worker of its own.

In metrics.jsonl, over the rows that have a trained token:
    reward/NAME                   mean score of a part, before its weight
    reward/NAME/only              share of rows that are full (1) in this part and 0 in that which says what is right: what is won by form
    reward/length_correlation     Pearson's, of the mixed raw score and the trained tokens; 0 where one of them is the same for all
A rise of the last two while the held-out reward stands still is how a reward that is being gamed looks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from rlflow import Tensor, operator
from rlflow.errors import UsageError
from rlflow.measure import note_correlation, note_mean

from .fields import Answer, ResponseMask, ResponseText, TokenRewards, TokenScores
from .records import Scores
from .reward import RewardFn

__all__ = ["Part", "add_part", "mixed", "mixture", "watch_rewards"]


@dataclass(frozen=True)
class Part:
    """One part: its name in the metrics, what judges, and how much of its score counts."""

    name: str
    reward: RewardFn
    weight: float


def mixture(*, is_correct: str = "correct", **parts: tuple[RewardFn, float]) -> RewardFn:
    """A reward that is the weighted sum of named parts, each `name=(reward, weight)`.

    is_correct: the part that says whether a response is right. Raises UsageError where there is no such part, and for a weight that
    is no finite number.

        mixture(correct=(integer_match, 1.0), format=(matches("[0-9]+"), 0.1))     "7" right: 1.1; "it is 7" right: 1; "8" wrong: 0.1
    """
    if is_correct not in parts:
        there_are = ", ".join(parts) or "none"
        raise UsageError(f'mixture: no part {is_correct!r}, of {there_are}; say which of them knows what is right: is_correct="..."')
    for name, (_, weight) in parts.items():
        if not math.isfinite(weight):
            raise UsageError(f"mixture: the weight of `{name}` is {weight}; give a finite number")
    first = sorted(parts, key=lambda name: name != is_correct)  # the run takes the first raw reward for the judgement
    return partial(mixed, parts=tuple(Part(name, parts[name][0], float(parts[name][1])) for name in first))


def mixed(response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, parts: tuple[Part, ...]) -> Scores:
    """The body of a mixture: a function of operators. The first part says what is correct."""
    judged = [part.reward(response_text, answer, response_mask) for part in parts]
    right = judged[0].token_level_scores
    total = add_part(right, response_mask, name=parts[0].name, weight=parts[0].weight, is_last=len(parts) == 1)
    for part, scores in zip(parts[1:], judged[1:], strict=True):
        total = add_part(
            scores.token_level_scores, response_mask, total, right, name=part.name, weight=part.weight, is_last=part is parts[-1]
        )
    return Scores(token_level_scores=total, is_correct=judged[0].is_correct)


@operator(per="row")
def add_part(
    token_level_scores: TokenScores, response_mask: ResponseMask, so_far: TokenScores | None = None, right: TokenScores | None = None, *,
    name: str, weight: float, is_last: bool,
) -> TokenScores:  # fmt: skip
    """so_far + weight · scores, f32[B, R], and what the part is worth to the metrics. right: the scores that say what is right."""
    scores, _ = _of_rows(token_level_scores, response_mask)
    note_mean(f"reward/{name}", float(scores.sum()), rows=len(scores))
    if right is not None:
        won_by_form = (scores >= 1.0) & (_of_rows(right, response_mask)[0] == 0.0)
        note_mean(f"reward/{name}/only", float(won_by_form.sum()), rows=len(scores))
    total = token_level_scores * weight if so_far is None else so_far + token_level_scores * weight
    if is_last:
        _note_lengths(total, response_mask)
    return total


@operator(per="row")
def watch_rewards(token_level_scores: TokenScores, response_mask: ResponseMask) -> TokenRewards:
    """`shape_rewards` that also measures reward/length_correlation: `--swap shape_rewards=operators.mixture:watch_rewards`."""
    _note_lengths(token_level_scores, response_mask)
    return token_level_scores.clone()


def _note_lengths(token_level_scores: Tensor, response_mask: Tensor) -> None:
    scores, tokens = _of_rows(token_level_scores, response_mask)
    note_correlation("reward/length_correlation", scores.tolist(), tokens.tolist())


def _of_rows(token_level_scores: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Score and tokens of each row that has a trained one."""
    mask = response_mask.bool()
    tokens = mask.sum(-1)
    return token_level_scores.where(mask, 0.0).sum(-1)[tokens > 0], tokens[tokens > 0]
