"""Make the shipped data sets: python -m pipelines.data.make [folder]

    digits.parquet          one turn      "Which is the largest of 3, 7, 1? " → 7
    guess.parquet           many turns    the answer is a secret number; operators.environment.HigherLower replies
    reasoning_gym.parquet   one turn      tasks of reasoning-gym; the answer is the task's entry as JSON

Each set is split by its operands, so that no combination that is asked in `test` occurs in `train` in any order or wording.
Nothing is written where guessing without reading the operands would get more than MAX_BLIND of the test rows of the
single-turn sets right. Equal seeds give equal rows.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from operators.baselines import Baselines, blind_baselines
from rlflow.errors import DataError

__all__ = ["MAX_BLIND", "Question", "digits", "guess", "split_rows", "write"]

SEED = 1234
HELD_OUT = 5  # one of so many operand combinations is asked about in `test` only
MAX_BLIND = 0.3

PICK: dict[str, Callable[[tuple[int, ...]], int]] = {"largest": max, "smallest": min}


class Question(NamedTuple):
    """One row before its split. `operands`: what decides the answer, order and wording aside."""

    prompt: str
    answer: str
    template: str
    task: str
    operands: tuple[Any, ...]
    said: str  # the answer as a model would say it: what the baselines count


def digits() -> Iterator[Question]:
    """Every ordered triple of digits, asked for its largest and its smallest."""
    for numbers in itertools.product(range(10), repeat=3):
        for word, pick in PICK.items():
            ask = f"Which is the {word} of {{}}? ".format
            answer = str(pick(numbers))
            yield Question(ask(", ".join(map(str, numbers))), answer, ask("_, _, _"), word, tuple(sorted(numbers)), answer)


def guess() -> Iterator[Question]:
    """Every secret of every range of digits that has at least four."""
    for low, high in itertools.combinations(range(10), 2):
        for secret in range(low, high + 1):
            if high - low >= 3:
                yield Question(f"Guess {low} to {high}: ", str(secret), "Guess _ to _: ", "guess", (low, high, secret), str(secret))


def reasoning_gym(name: str, count: int, template: Callable[[dict[str, Any]], str], **config: Any) -> Iterator[Question]:
    """`count` entries of one task, without repetition."""
    import reasoning_gym as library

    seen: set[str] = set()
    for entry in library.create_dataset(name, seed=SEED, size=20 * count, **config):
        metadata = entry["metadata"]
        operands = _operands(metadata)
        if len(seen) < count and entry["question"] not in seen:
            seen.add(entry["question"])
            del metadata["difficulty"]  # ranges of the generator, the same in each row
            yield Question(entry["question"], json.dumps(entry), template(metadata), name, operands, entry["answer"])


def gym_mixture() -> Iterator[Question]:
    yield from reasoning_gym("chain_sum", 200, _sum_template, min_terms=2, max_terms=2, min_digits=1, max_digits=2)
    yield from reasoning_gym("fraction_simplification", 200, lambda _: "_/_", max_value=20, max_factor=5, styles=["plain"])


def _operands(metadata: dict[str, Any]) -> tuple[Any, ...]:
    """What an entry asks about: the two numbers of a fraction, or the terms of a sum in any order."""
    if "numerator" in metadata:
        return (metadata["numerator"], metadata["denominator"])
    return tuple(sorted(metadata["expression"].split()))


def _sum_template(metadata: dict[str, Any]) -> str:
    return " ".join(part if part in "+-" else "_" for part in metadata["expression"].split()) + " ="


# --- from questions to a file -----------------------------------------------------------------------------------------------------------
def split_rows(questions: Iterable[Question], seed: int = SEED) -> list[dict[str, str]]:
    """Rows with their split, shuffled: one of HELD_OUT operand combinations, with all its questions, is `test`."""
    rows, chance = list(questions), random.Random(seed)
    held_out = _held_out(rows, chance)
    chance.shuffle(rows)
    return [
        {
            "prompt": row.prompt, "answer": row.answer, "template": row.template,
            "split": "test" if row.operands in held_out else "train", "task": row.task,
        }
        for row in rows
    ]  # fmt: skip


def _held_out(rows: list[Question], chance: random.Random) -> set[tuple[Any, ...]]:
    """One combination, by chance, of every HELD_OUT neighbours in the order of how many questions and which answers they have.

    So answers are about as frequent in `test` as in all rows, and a constant answer is worth the same in both.
    """
    answers: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for row in rows:
        answers.setdefault(row.operands, []).append((row.template, row.said))
    ordered = sorted(answers, key=lambda operands: (len(answers[operands]), sorted(answers[operands]), operands))
    return {chance.choice(ordered[start : start + HELD_OUT]) for start in range(0, len(ordered), HELD_OUT)}


def write(folder: Path, name: str, questions: Iterable[Question], *, max_blind: float | None) -> Baselines:
    """Write one data set and say what guessing is worth on its test rows. Raises DataError if that is more than `max_blind`."""
    questions = list(questions)
    rows = split_rows(questions)
    said = {(question.prompt, question.answer): question.said for question in questions}
    test = [row for row in rows if row["split"] == "test"]
    found = blind_baselines([said[row["prompt"], row["answer"]] for row in test], [row["template"] for row in test])
    if max_blind is not None and found.best_blind > max_blind:
        raise DataError(f"{name}: guessing without the operands gets {found.best_blind:.3f} of the test rows right, over {max_blind}")
    _write_parquet(folder / name, rows)
    size = (folder / name).stat().st_size
    print(
        f"{name:24} {len(rows) - len(test):5} train {len(test):4} test {size / 1000:6.1f} kB   best constant answer "
        f"{found.best_constant:.3f} ({found.constant!r})   best answer without operands {found.best_blind:.3f}"
    )
    return found


def _write_parquet(file: Path, rows: list[dict[str, str]]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrow: Any = pyarrow  # it has no types
    schema = arrow.schema([(name, arrow.string()) for name in ("prompt", "answer", "template", "split", "task")])
    arrow.parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file, compression="zstd")


def main(folder: Path) -> None:
    write(folder, "digits.parquet", digits(), max_blind=MAX_BLIND)
    write(folder, "guess.parquet", guess(), max_blind=None)
    write(folder, "reasoning_gym.parquet", gym_mixture(), max_blind=MAX_BLIND)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
