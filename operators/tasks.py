"""Rewards of a batch in which tasks are mixed: rows are grouped by task, every group is judged by its own reward, all at once.

    answer of a row     {"task": "sums", "answer": "7"}         = tagged("sums", "7"): dataset(..., tag_tasks=True)
                        an entry of reasoning-gym               its task is "reasoning_gym", and the entry is the answer

    rows 0 sums, 1 words, 2 sums ─┬─ sums   rows 0, 2 ──▶ integer_match ──▶ [s0, s2] ─┐
                                  └─ words  row 1 ──────▶ exact_match ────▶ [s1] ─────┴─ by index ──▶ [s0, s1, s2]

A task whose reward fails (its verifier on all of its rows, its judge on all, or it raises) costs its own rows: they score 0, the log names
the task, and `failed/TASK` counts them. When every task that there is has failed, the run ends; so it does when one has raised what no
reward raises (a TypeError, say: a fault in its code) four times in a row. A row of a task that has no reward is bad data, and ends it at
once. metrics.jsonl has task/TASK, the mean score of the rows that have a trained token.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rlflow import State, Tensor, operator
from rlflow.errors import DataError, OperatorError, UsageError, WaitTimeout
from rlflow.measure import collected, note, note_mean

from .dataset import tagged
from .fields import Answer, ResponseMask, ResponseText
from .records import Scores
from .reward import HOPELESS, RewardFn

__all__ = ["Task", "by_task", "judge_by_task", "tagged", "untagged"]

_log = logging.getLogger(__name__)
_raised: Counter[str] = Counter()  # calls in a row in which the reward of a task raised what none is to raise
_failing: dict[tuple[str, ...], set[str]] = {}  # of the tasks of a reward, those that failed when they were last asked about


@dataclass(frozen=True)
class Task:
    """A type of task, by the name that rows have it under, and what judges its rows."""

    name: str
    reward: RewardFn


class Group(NamedTuple):
    """The rows of one task: their numbers in the batch, and their answers without the tag."""

    task: Task
    rows: list[int]
    answers: list[str]


class Judged(NamedTuple):
    """What came of a group: scores, or why there are none; and what was noted on the way."""

    group: Group
    scores: Scores | None
    why: str
    noted: Mapping[str, float]


def untagged(answer: str) -> tuple[str, str]:
    """(task, answer as its reward reads it). Raises ValueError for one without a task."""
    entry = json.loads(answer)
    if isinstance(entry, dict) and isinstance(entry.get("task"), str) and isinstance(entry.get("answer"), str):
        return entry["task"], entry["answer"]
    if isinstance(entry, dict) and "source_dataset" in entry.get("metadata", {}):
        return "reasoning_gym", answer
    raise ValueError("neither an object with `task` and `answer`, nor an entry of reasoning-gym")


def by_task(rewards: Mapping[str, RewardFn]) -> RewardFn:
    """A reward that asks another one for each task: `by_task({"sums": integer_match, "words": exact_match})`.

    What it asks is called inside of its own node: a reward with a worker of its own cannot be among them. Raises UsageError for none.
    """
    if not rewards:
        raise UsageError('by_task: no task; give the reward of each, as in by_task({"sums": integer_match})')
    return partial(judge_by_task, tasks=tuple(Task(name, reward) for name, reward in rewards.items()))


@operator(per="row", state=(State("failing_tasks", 8, in_checkpoint=False),))
def judge_by_task(response_text: ResponseText, answer: Answer, response_mask: ResponseMask, *, tasks: tuple[Task, ...]) -> Scores:
    """Scores of all rows, each by the reward of its task, in the order of the rows.

    Raises DataError naming the row for an answer without a task, and for a task without a reward; OperatorError if all tasks fail.
    """
    groups = _grouped(answer, tasks)
    judged = _at_once(groups, response_text, response_mask)
    scores = response_mask.new_zeros(response_mask.shape).float()
    correct = scores.new_zeros(scores.shape[0])
    for group, found, why, noted in judged:
        for name, value in noted.items():
            note(name, value)
        if found is not None:
            scores[group.rows], correct[group.rows] = found.token_level_scores, found.is_correct
        else:
            _log.warning("task %s failed, its %d rows (%s ...) score 0: %s", group.task.name, len(group.rows), group.rows[0], why)
            note(f"failed/{group.task.name}", float(len(group.rows)))
        trained = response_mask[group.rows].bool().any(-1)
        note_mean(f"task/{group.task.name}", float(scores[group.rows][trained].sum()), rows=int(trained.sum()))
    _refuse_if_all_fail(tasks, judged)
    return Scores(token_level_scores=scores, is_correct=correct)


def _grouped(answers: Sequence[str], tasks: Sequence[Task]) -> list[Group]:
    """The rows of each task that has some."""
    groups = {task.name: Group(task, [], []) for task in tasks}
    for row, answer in enumerate(answers):
        try:
            name, plain = untagged(answer)
        except ValueError as error:
            raise DataError(f"row {row}: its answer {answer[:80]!r} says no task ({error}); make it with operators.tasks.tagged") from error
        if name not in groups:
            raise DataError(f"row {row} is of the task {name!r}, which no reward is given for; there are {', '.join(groups)}")
        groups[name].rows.append(row)
        groups[name].answers.append(plain)
    return [group for group in groups.values() if group.rows]


def _at_once(groups: Sequence[Group], texts: Sequence[str], response_mask: Tensor) -> list[Judged]:
    """Every group in a thread of its own, in the order of the groups."""

    def judge(group: Group) -> Judged:
        collected()
        scores, why = None, ""
        try:
            scores = group.task.reward([texts[row] for row in group.rows], group.answers, response_mask[group.rows])
        except (OperatorError, WaitTimeout) as error:
            why = str(error)
        except DataError as error:
            raise DataError(f"task {group.task.name}: {error} (its rows are {_first(group.rows)} of the batch)") from error
        except Exception as error:  # of a reward of the user's own
            why = f"it raised {type(error).__name__}: {error}"
            _raised[group.task.name] += 1
            if _raised[group.task.name] >= HOPELESS:
                raise OperatorError(
                    f"the reward of task {group.task.name} failed {HOPELESS} times in a row, the last time {why}"
                ) from error
        else:
            _raised[group.task.name] = 0
        return Judged(group, scores, why, collected())

    if not groups:
        return []
    with ThreadPoolExecutor(len(groups), thread_name_prefix="tasks") as threads:
        asked = [threads.submit(copy_context().run, judge, group) for group in groups]
        return [one.result() for one in asked]


def _first(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")


def _refuse_if_all_fail(tasks: Sequence[Task], judged: Sequence[Judged]) -> None:
    """A call may hold rows of a single task: it is over when all have failed, each when it was last asked about."""
    failing = _failing.setdefault(tuple(task.name for task in tasks), set())
    failed: dict[str, Any] = {one.group.task.name: one.why for one in judged if one.scores is None}
    failing.difference_update(one.group.task.name for one in judged)
    failing.update(failed)
    if failed and len(failing) == len(tasks):
        raise OperatorError(f"the rewards of all tasks failed ({', '.join(sorted(failing))}); the last one: {list(failed.values())[-1]}")
