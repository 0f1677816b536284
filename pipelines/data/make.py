"""Make the shipped data sets: python -m pipelines.data.make [folder]

    digits.parquet          one turn      "largest of 3, 7, 1? " → 7
    digits_mixed.parquet    one turn      largest, smallest or middle of three digits: harder
    calculator.parquet      two turns     "84 over 12? " → 7; operators.calculator.Calculator computes
    guess.parquet           many turns    "guess 2-8: ", the answer is a secret; operators.environment.HigherLower replies
    reasoning_gym.parquet   one turn      tasks of reasoning-gym; the answer is the task's entry as JSON

Each set is split by its operands, so that no combination that is asked in `test` occurs in `train` in any order or wording.
Nothing is written where guessing without reading the operands would get more than MAX_BLIND of the test rows of the
single-turn sets right. All prompts are in lower case: a small alphabet learns sooner.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from operators.baselines import Baselines, blind_baselines
from rlflow.errors import DataError

__all__ = ["MAX_BLIND", "Question", "calculations", "digits", "guess", "split_rows", "write"]

SEED = 1234
HELD_OUT = 5  # every fifth operand combination is asked about in `test` only
MAX_BLIND = 0.3

PLACE = {"largest": 2, "middle": 1, "smallest": 0}  # of the three digits in order


class Question(NamedTuple):
    """One row before its split. `operands`: what decides the answer, order and wording aside."""

    prompt: str
    answer: str
    template: str
    task: str
    operands: tuple[Any, ...]
    said: str  # the answer as a model would say it: what the baselines count


def digits(words: Sequence[str]) -> Iterator[Question]:
    """Every ordered triple of digits, repeats included, asked for each of `words`."""
    for numbers in itertools.product(range(10), repeat=3):
        for word in words:
            ask = f"{word} of {{}}? ".format
            in_order = sorted(numbers)
            low, middle, high = in_order
            answer = str(in_order[PLACE[word]])
            yield Question(ask(", ".join(map(str, numbers))), answer, ask("_, _, _"), word, (high, low, middle), answer)


def calculations() -> Iterator[Question]:
    """Differences and whole quotients 2 to 9 of numbers below 100: too many to be known by heart, so that computing pays."""
    for right, result in itertools.product(range(2, 50), range(2, 10)):
        for word, left in {"minus": right + result, "over": right * result}.items():
            if left < 100:
                yield Question(f"{left} {word} {right}? ", str(result), f"_ {word} _? ", word, (result, left, right), str(result))


def guess() -> Iterator[Question]:
    """Every secret of every range of four to ten digits. Split by the range: the prompt tells nothing of the secret."""
    for low, high in itertools.combinations(range(10), 2):
        for secret in range(low, high + 1):
            if high - low >= 3:
                yield Question(f"guess {low}-{high}: ", str(secret), "guess _-_: ", "guess", (high - low, low), str(secret))


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
            yield Question(entry["question"].lower(), json.dumps(entry), template(metadata), name, operands, entry["answer"])


def gym_mixture() -> Iterator[Question]:
    yield from reasoning_gym("chain_sum", 200, _sum_template, min_terms=2, max_terms=2, min_digits=1, max_digits=2)
    yield from reasoning_gym("count_bits", 200, lambda _: "how many 1 bits are there in _?", min_n=1, max_n=1023)


def _operands(metadata: dict[str, Any]) -> tuple[Any, ...]:
    """What an entry asks about: a number, or the terms of a sum in any order."""
    if "number" in metadata:
        return (str(metadata["number"]),)
    return tuple(sorted(metadata["expression"].split()))


def _sum_template(metadata: dict[str, Any]) -> str:
    return " ".join(part if part in "+-" else "_" for part in metadata["expression"].split()) + " ="


# --- from questions to a file -----------------------------------------------------------------------------------------------------------
def split_rows(questions: Iterable[Question]) -> list[dict[str, str]]:
    """Rows with their split, shuffled: every HELD_OUT-th operand combination in their order, with all its questions, is `test`.

    Their order starts with what decides the answer, so answers are about as frequent in `test` as in all rows.
    """
    rows = list(questions)
    held_out = set(sorted({row.operands for row in rows})[HELD_OUT // 2 :: HELD_OUT])
    random.Random(SEED).shuffle(rows)
    return [
        {
            "prompt": row.prompt, "answer": row.answer, "template": row.template,
            "split": "test" if row.operands in held_out else "train", "task": row.task,
        }
        for row in rows
    ]  # fmt: skip


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
    write(folder, "digits.parquet", digits(["largest"]), max_blind=MAX_BLIND)
    write(folder, "digits_mixed.parquet", digits(list(PLACE)), max_blind=MAX_BLIND)
    write(folder, "calculator.parquet", calculations(), max_blind=MAX_BLIND)
    write(folder, "guess.parquet", guess(), max_blind=None)
    write(folder, "reasoning_gym.parquet", gym_mixture(), max_blind=MAX_BLIND)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
