"""Prompts of a parquet file, as token ids.

    column     type      what it holds
    prompt     string    the text given to the model
    answer     string    what the verifier compares with: a number, an expression, or an entry of reasoning-gym as JSON
    template   string    the prompt with its operands left out: what a guess may know that ignores them (baselines.py)
    split      string    train | test
    task       string    name of the task; read where tasks are mixed: `tag_tasks`

Prompts keep their true lengths: `prompt_ids` is the ragged form of i64[P, Q], a list of P arrays. (Right-padded, the length of
a prompt would be lost: no id is free to stand for padding.) Operators that take `prompt_ids` accept both forms.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from rlflow import State, fresh, operator
from rlflow.errors import DataError

from .encoding import encode
from .fields import P, Q
from .models import context_of, tokenizer_of
from .records import Prompts

__all__ = ["COLUMNS", "SHIPPED", "Split", "dataset", "encoded", "find_data", "read_rows", "tagged"]

COLUMNS = ("prompt", "answer", "template", "split")
SHIPPED = Path(__file__).resolve().parents[1] / "pipelines" / "data"

Split = Literal["train", "test"]


@operator(per="row", sizes={P: fresh(), Q: fresh()}, state=(State("position", 8, in_checkpoint=False),))
def dataset(path: str, *, split: Split = "train", tokenizer: str, limit: int | None = None, tag_tasks: bool = False) -> Prompts:
    """The rows of one split, in the order of the file; `uid` counts them from 0.

    Its position is how many prompts were drawn: epoch and order follow from it and from the seed of the run, which shuffles each epoch.

    path: a parquet file; a relative one is looked for in the current folder, then among the shipped data sets.
    tokenizer: "tiny", or a checkpoint folder with a tokenizer.json.  limit: only the first rows.
    tag_tasks: every answer says which task it is of, by the column `task`, for a reward by task (tasks.py).
    Raises DataError for a file, column or split that is not there, and names the row of the file (from 0) for a value that is
    missing, a prompt without tokens, one that the tokenizer has no tokens for and one that fills the model's context
    (`max_position_embeddings` of config.json), so that no answer fits behind it.
    """
    file = find_data(path)
    rows = read_rows(file, split, limit, (*COLUMNS, "task") if tag_tasks else COLUMNS)
    answers = [tagged(task, answer) for task, answer in zip(rows["task"], rows["answer"], strict=True)] if tag_tasks else rows["answer"]
    tokens, context = tokenizer_of(tokenizer), context_of(tokenizer)
    ids = [encoded(tokens, context, prompt, f"{file}, row {row}") for row, prompt in zip(rows["row"], rows["prompt"], strict=True)]
    return Prompts(prompt_ids=cast(Any, ids), uid=cast(Any, np.arange(len(ids), dtype=np.int64)), answer=answers, template=rows["template"])


def tagged(task: str, answer: str) -> str:
    """An answer that says which task it is of."""
    return json.dumps({"task": task, "answer": answer}, ensure_ascii=False)


def find_data(path: str) -> Path:
    """The file that `path` means. Raises DataError that lists where it was looked for."""
    places = [Path.cwd() / path, SHIPPED / path]  # an absolute path is itself in both
    for place in places:
        if place.is_file():
            return place
    shipped = ", ".join(sorted(file.name for file in SHIPPED.glob("*.parquet")))
    raise DataError(f"no data set {path!r}: looked for {' and '.join(map(str, dict.fromkeys(places)))}; shipped are {shipped}")


def read_rows(file: Path, split: str, limit: int | None = None, names: Sequence[str] = COLUMNS) -> dict[str, list[Any]]:
    """The columns of one split as lists, and under "row" the number of each row in the file."""
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit}: give at least 1, or None for all rows")
    columns = _read(file, names)
    splits = columns["split"]
    _refuse_missing(file, "split", splits, list(range(len(splits))))
    numbers = [row for row, name in enumerate(splits) if name == split][:limit]
    if not numbers:
        raise DataError(f"{file} has no row of split {split!r}; its {len(splits)} rows are of {sorted(set(map(str, splits)))}")
    rows: dict[str, list[Any]] = {name: [values[row] for row in numbers] for name, values in columns.items()}
    for name, values in rows.items():
        _refuse_missing(file, name, values, numbers)
    return rows | {"row": numbers}


def _read(file: Path, names: Sequence[str]) -> dict[str, list[str | None]]:
    import pyarrow.parquet

    parquet: Any = pyarrow.parquet  # it has no types
    try:
        _check_schema(file, parquet.read_schema(file), names)
        table = parquet.read_table(file, columns=list(names))
    except (ValueError, OSError) as error:  # what pyarrow raises for a file that is no parquet, or a torn one
        raise DataError(f"{file} cannot be read as parquet: {error}") from error
    return {name: table.column(name).to_pylist() for name in names}


def _check_schema(file: Path, schema: Any, names: Sequence[str]) -> None:
    for name in names:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, 1)
            hint = f"; is it {near[0]!r}?" if near else ""
            raise DataError(f"{file} has no column {name!r}, only {', '.join(schema.names)}{hint}")
        if str(kind := schema.field(name).type) not in ("string", "large_string"):
            raise DataError(f"{file}: column {name!r} is {kind}; it must be string")


def _refuse_missing(file: Path, name: str, values: list[str | None], numbers: list[int]) -> None:
    for row, value in zip(numbers, values, strict=True):
        if value is None:
            raise DataError(f"{file}, row {row}: {name} is null")


def encoded(tokenizer: Any, context: int | None, prompt: str, place: str) -> npt.NDArray[np.int64]:
    """Ids of a prompt. Raises DataError naming `place` where there are none, or no answer fits behind them into `context` tokens."""
    try:
        ids = encode(tokenizer, prompt)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    if not ids:
        raise DataError(f"{place}: the prompt {prompt!r} has no tokens; a model needs one at least")
    if context is not None and len(ids) > context - 1:
        raise DataError(
            f"{place}: the prompt {prompt[:40]!r}... has {len(ids)} tokens, the model's context holds {context}, an answer of at least one "
            f"token included; leave the row out or cut it to {context - 1}"
        )
    return np.array(ids, dtype=np.int64)
