"""Prompts of reasoning-gym, made where they are needed: any of its tasks by name, no file.

gym_dataset("chain_sum", size=500, options='{"max_digits": 1}')     400 train, 100 test, no question in both
reasoning_gym_reward                                                scores answers by the task's own scorer
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, cast

import numpy as np

from rlflow import State, fresh, operator
from rlflow.errors import DataError
from rlflow.extras import require

from .dataset import Split, encoded
from .fields import P, Q
from .models import context_of, tokenizer_of
from .records import Prompts

__all__ = ["entries", "gym_dataset"]

HELD_OUT = 5  # every fifth question is of `test`
DRAWS = 20  # entries drawn for each distinct question that is wanted, at most


@operator(per="row", sizes={P: fresh(), Q: fresh()}, state=(State("position", 8, in_checkpoint=False),))
def gym_dataset(
    task: str, *, split: Split = "train", tokenizer: str, size: int = 500, seed: int = 0, options: str = "{}", lower: bool = False
) -> Prompts:
    """`size` different questions of one task, every fifth of them held out; equal arguments give equal rows. `uid` counts them from 0.

    options: of the task's generator, a JSON object. lower: questions in lower case, for models over a small alphabet. `answer` is the
    task's entry as JSON, which `reasoning_gym_reward` reads; `template` is the name of the task.
    Raises UsageError without the extra `rewards`, and DataError for a task or option that there is not, where the task has fewer
    questions, and naming the question that the tokenizer has no tokens for or that fills the model's context.
    """
    require("reasoning_gym", extra="rewards", what="gym_dataset")
    rows = [entry for i, entry in enumerate(entries(task, size, seed, options)) if (i % HELD_OUT == HELD_OUT // 2) == (split == "test")]
    tokens, context = tokenizer_of(tokenizer), context_of(tokenizer)
    questions = [str(entry["question"]).lower() if lower else str(entry["question"]) for entry in rows]
    ids = [encoded(tokens, context, question, f"reasoning-gym's {task}, question {i} of {split}") for i, question in enumerate(questions)]
    return Prompts(
        prompt_ids=cast(Any, ids), uid=cast(Any, np.arange(len(ids), dtype=np.int64)),
        answer=[json.dumps(entry) for entry in rows], template=[task] * len(rows),
    )  # fmt: skip


@lru_cache(8)
def entries(task: str, size: int, seed: int, options: str) -> list[dict[str, Any]]:
    """`size` entries of a task with different questions, in the order of its generator. Raises DataError where it has fewer."""
    import reasoning_gym as library

    if size < HELD_OUT:
        raise DataError(f"size={size}: give at least {HELD_OUT} questions, so that one is held out")
    try:
        drawn = library.create_dataset(task, seed=seed, size=DRAWS * size, **_options(task, options))
    except (AssertionError, TypeError, ValueError) as error:  # what the library raises for a task or option that there is not
        raise DataError(f"reasoning-gym makes no task {task!r} with {options}: {error}") from error
    found: dict[str, dict[str, Any]] = {}
    for entry in drawn:
        found.setdefault(entry["question"], entry)
        if len(found) == size:
            return list(found.values())
    raise DataError(
        f"reasoning-gym's {task} with {options} gave {len(found)} different questions in {DRAWS * size}; ask for size={len(found)}"
    )


def _options(task: str, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise DataError(f"options of {task} are no JSON: {text!r} ({error})") from error
    if not isinstance(options, dict):
        raise DataError(f"options of {task} are {text!r}; give a JSON object, as in '{{\"max_digits\": 1}}'")
    return options
