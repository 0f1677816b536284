"""From prompts to trajectories to send, and from the stream of finished rows to one global batch.

    dispatch(n=2)             prompts a b        ──▶  trajectories a0 a1 b0 b1
    form_batch(prompts=2)     rows b0 a0 a1 b1 c0 ──▶  rows b0 b1 a0 a1      whole groups, the oldest first

At run time the controller applies them to keys and uids: it dispatches up to a watermark, and takes groups that are ready.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from rlflow import RowsT, operator
from rlflow.errors import DataError

from .fields import G, GroupSize, P, PromptCount, T
from .records import Prompts, Trajectories

__all__ = ["dispatch", "form_batch", "group_rows", "take"]

ColumnT = TypeVar("ColumnT")


@operator(per="row", rows="expand", sizes={T: P * G})
def dispatch(prompts: Prompts, *, n: GroupSize) -> Trajectories:
    """Each prompt `n` times: its trajectories share `uid` and count `traj_uid` from 0. Raises DataError for n < 1."""
    if n < 1:
        raise DataError(f"dispatch(n={n}): a prompt needs at least one trajectory")
    count = len(prompts.answer)
    origin = [row for row in range(count) for _ in range(n)]
    return Trajectories(
        prompt_ids=take(prompts.prompt_ids, origin),
        uid=take(prompts.uid, origin),
        traj_uid=_like(prompts.uid, list(range(n)) * count),
        answer=take(prompts.answer, origin),
    )


@operator(per="group", rows="form")
def form_batch(rows: RowsT, *, prompts: PromptCount) -> RowsT:
    """All rows of the first `prompts` uids, in the order in which the uids first appear, each group together.

    Raises DataError if the record has no `uid` or fewer groups.
    """
    uid = getattr(rows, "uid", None)
    if uid is None:
        raise DataError(f"form_batch needs a `uid` in {type(rows).__name__} to know which rows are one group")
    index = group_rows(uid.tolist(), prompts)
    fields = {name: take(column, index) for name, column in vars(rows).items()}
    return cast(RowsT, dataclasses.replace(cast(Any, rows), **fields))


def group_rows(uids: Sequence[int], prompts: int) -> list[int]:
    """Row numbers of the first `prompts` groups, group by group: uids 7 5 5 7 9 with prompts=2 give 0 3 1 2."""
    if prompts < 1:
        raise DataError(f"prompts={prompts}: a batch needs at least one")
    groups: dict[int, list[int]] = {}
    for row, uid in enumerate(uids):
        groups.setdefault(uid, []).append(row)
    if len(groups) < prompts:
        raise DataError(f"a batch of {prompts} prompts was asked of rows of {len(groups)}; sample more, or ask for fewer")
    return [row for group in list(groups.values())[:prompts] for row in group]


def take(column: ColumnT, rows: list[int]) -> ColumnT:
    """The given rows of a column: a tensor, an array, or a list (text, or a ragged column)."""
    values: Any = column
    return cast(ColumnT, [values[row] for row in rows] if isinstance(column, list) else values[rows])


def _like(column: Any, values: list[int]) -> Any:
    return np.array(values, dtype=np.int64) if isinstance(column, np.ndarray) else column.new_tensor(values)
