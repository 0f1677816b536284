"""How far guessing gets: what a run must beat before its reward means anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlflow.errors import DataError

__all__ = ["Baselines", "blind_baselines"]


@dataclass(frozen=True)
class Baselines:
    """Accuracies, 0 .. 1, of the best guesses that do not look at the operands of a prompt."""

    best_constant: float  # one answer for all prompts
    best_blind: float  # one answer a template: knows how the question is worded
    constant: str  # the answer of best_constant


def blind_baselines(answers: Sequence[str], templates: Sequence[str]) -> Baselines:
    """Accuracy of the best single answer and of the best answer a template.

    answers 1 1 2 3 with templates a b b b: "1" is right on 2 of 4; "1" for a and "2" for b on 1 + 1 of 4.
    Raises DataError for no rows or lists of different lengths.
    """
    if not answers or len(answers) != len(templates):
        raise DataError(f"baselines need one template an answer and a row at least, got {len(answers)} and {len(templates)}")
    by_template: dict[str, Counter[str]] = defaultdict(Counter)
    for answer, template in zip(answers, templates, strict=True):
        by_template[template][answer] += 1
    constant, hits = Counter(answers).most_common(1)[0]
    blind = sum(counter.most_common(1)[0][1] for counter in by_template.values())
    return Baselines(hits / len(answers), blind / len(answers), constant)
