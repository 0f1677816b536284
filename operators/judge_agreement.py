"""How far a judge, or any reward, can be trusted: measured against responses that a person has labelled.

    python -m operators.judge_agreement operators.reward:math_reward labelled_answers.jsonl
    python -m operators.judge_agreement my_file:judge my_labels.parquet

    labelled rows ──▶ reward ──▶ right or not, a row ──┬─▶ against the label: confusion, accuracy, precision, recall, Cohen's kappa
           └─ in reverse order ──▶ reward ─────────────┴─▶ biases: does length or place move the verdict?

A file has a row a response, in JSON lines or parquet: response_text, answer (as the data set has it), label (1 or true: right, 0 or
false: wrong). `pipelines/data/labelled_answers.jsonl` is one for the shipped verifiers of numbers and mathematics.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlflow.errors import DataError, RlflowError, UsageError
from rlflow.measure import collected, note, pearson
from rlflow.named import function_of

from .dataset import SHIPPED
from .reward import RewardFn

__all__ = ["Agreement", "Confusion", "Labelled", "agreement", "read_labelled"]

COLUMNS = ("response_text", "answer", "label")


@dataclass(frozen=True)
class Labelled:
    """A response, the reference answer, and whether a person finds it right."""

    response_text: str
    answer: str
    label: bool


@dataclass(frozen=True)
class Confusion:
    """Rows by what the judge said and what they are: true_right is right and was said to be."""

    true_right: int
    false_right: int
    false_wrong: int
    true_wrong: int

    @property
    def rows(self) -> int:
        return self.true_right + self.false_right + self.false_wrong + self.true_wrong

    @property
    def accuracy(self) -> float:
        """Share of rows on which judge and person agree."""
        return (self.true_right + self.true_wrong) / self.rows

    @property
    def precision(self) -> float:
        """Of what the judge finds right, the share that is; 0 if it finds nothing right. 1 - precision is what a policy can exploit."""
        return _share(self.true_right, self.true_right + self.false_right)

    @property
    def recall(self) -> float:
        """Of what is right, the share that the judge finds right; 0 if nothing is."""
        return _share(self.true_right, self.true_right + self.false_wrong)

    @property
    def kappa(self) -> float:
        """Cohen's kappa (1960): (p_o - p_e) / (1 - p_e), the agreement beyond that of two who answer by chance with the same shares.

        1 is full agreement, 0 that of chance; 0 also where both always say the same, since chance would do as well.
        20 both right, 5 judge alone, 10 person alone, 15 both wrong: p_o = 0.7, p_e = 0.5 · 0.6 + 0.5 · 0.4 = 0.5, kappa 0.4.
        """
        judge, person = (self.true_right + self.false_right) / self.rows, (self.true_right + self.false_wrong) / self.rows
        by_chance = judge * person + (1 - judge) * (1 - person)
        return 0.0 if by_chance == 1.0 else (self.accuracy - by_chance) / (1 - by_chance)


@dataclass(frozen=True)
class Agreement:
    """What a measurement found.

    length_bias: correlation of (judge - label), which is 1 for a wrong response that passed and -1 for a right one that did not, with
    the characters of a response: above 0, long ones get away with more. position_bias: the same with the place of a row in the call,
    which is drawn, as files are often sorted. changed_by_order: share of rows with another verdict when all are asked again in the
    reverse order: 0 for a rule.
    failed: rows without a verdict, by reason; they count as found wrong. wrong: numbers of the rows that are judged wrongly.
    """

    confusion: Confusion
    length_bias: float
    position_bias: float
    changed_by_order: float
    failed: dict[str, float] = field(default_factory=dict[str, float])
    wrong: tuple[int, ...] = ()


def agreement(reward: RewardFn, rows: Sequence[Labelled], *, seed: int = 0) -> Agreement:
    """Asks `reward` about all rows at once, in an order drawn by `seed`, and again in its reverse. Raises DataError for no rows."""
    if not rows:
        raise DataError("no labelled rows: there is nothing to measure a judge against")
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    said, failed = _said(reward, rows, order)
    again, _ = _said(reward, rows, order[::-1])
    labels, places = [row.label for row in rows], [float(order.index(row)) for row in range(len(rows))]
    leaning = [float(judged) - float(label) for judged, label in zip(said, labels, strict=True)]
    return Agreement(
        confusion=_confusion(said, labels),
        length_bias=pearson(leaning, [float(len(row.response_text)) for row in rows]),
        position_bias=pearson(leaning, places),
        changed_by_order=sum(one != other for one, other in zip(said, again, strict=True)) / len(rows),
        failed=failed,
        wrong=tuple(row for row, off in enumerate(leaning) if off),
    )


def read_labelled(path: str) -> list[Labelled]:
    """The rows of a file, looked for in the current folder and among the shipped data sets. Raises DataError naming file and row."""
    file = next((place for place in (Path(path), SHIPPED / path) if place.is_file()), None)
    if file is None:
        raise DataError(f"no labelled file {path!r}, neither here nor in {SHIPPED}")
    rows = _parquet(file) if file.suffix == ".parquet" else _json_lines(file)
    return [_labelled(row, f"{file}, row {number}") for number, row in enumerate(rows)]


def _said(reward: RewardFn, rows: Sequence[Labelled], order: Sequence[int]) -> tuple[list[bool], dict[str, float]]:
    """What it says of each row, asked in this order; and what failed."""
    import torch

    asked, before = [rows[row] for row in order], collected()
    scores = reward([one.response_text for one in asked], [one.answer for one in asked], torch.ones(len(asked), 1, dtype=torch.bool))
    noted = collected()
    for name, value in before.items():
        note(name, value)
    said = dict(zip(order, (value >= 1.0 for value in scores.is_correct.tolist()), strict=True))
    return [said[row] for row in range(len(rows))], {n: v for n, v in noted.items() if n.startswith("failed/")}


def _confusion(said: Sequence[bool], labels: Sequence[bool]) -> Confusion:
    pairs = list(zip(said, labels, strict=True))
    counts = [pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))]
    return Confusion(*counts)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _json_lines(file: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{file}, row {number} is no JSON: {error}") from error
    return rows


def _parquet(file: Path) -> list[Any]:
    import pyarrow.parquet

    parquet: Any = pyarrow.parquet  # it has no types
    try:
        return list(parquet.read_table(file).to_pylist())
    except (ValueError, OSError) as error:
        raise DataError(f"{file} cannot be read as parquet: {error}") from error


def _labelled(row: Any, place: str) -> Labelled:
    if not isinstance(row, dict) or (missing := [name for name in COLUMNS if row.get(name) is None]):
        raise DataError(f"{place} has no {'object' if not isinstance(row, dict) else missing[0]}; a row has {', '.join(COLUMNS)}")
    if row["label"] not in (0, 1):
        raise DataError(f"{place}: label is {row['label']!r}; it is 1 or true for a right response, 0 or false for a wrong one")
    return Labelled(str(row["response_text"]), str(row["answer"]), bool(row["label"]))


# --- the command ------------------------------------------------------------------------------------------------------------------------
def told(name: str, found: Agreement, rows: Sequence[Labelled]) -> str:
    """The measurement as text, with the first rows that were judged wrongly."""
    table = found.confusion
    lines = [
        f"{name} on {table.rows} labelled responses",
        f"{'':14}{'label right':>12}{'label wrong':>12}",
        f"{'judged right':14}{table.true_right:12}{table.false_right:12}",
        f"{'judged wrong':14}{table.false_wrong:12}{table.true_wrong:12}",
        f"accuracy {table.accuracy:.3f}  precision {table.precision:.3f}  recall {table.recall:.3f}  kappa {table.kappa:.3f}",
        f"length bias {found.length_bias:+.3f}  position bias {found.position_bias:+.3f}  changed by order {found.changed_by_order:.3f}",
    ]
    lines += [f"{reason}: {count:.0f} rows" for reason, count in found.failed.items()]
    for row in found.wrong[:10]:
        one = rows[row]
        lines.append(
            f"  row {row}, {'right' if one.label else 'wrong'} by its label: {one.response_text[:60]!r} against {one.answer[:40]!r}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str], say: Callable[[str], object] = print) -> int:
    """0, or 1 if the measurement failed, 2 for a wrong command line."""
    if len(arguments) != 2 or arguments[0].startswith("-"):
        say("usage: python -m operators.judge_agreement MODULE:REWARD FILE.jsonl|FILE.parquet")
        return 2
    name, path = arguments
    try:
        rows = read_labelled(path)
        say(told(name, agreement(function_of(name, "REWARD"), rows), rows))
    except RlflowError as error:
        say(f"judge_agreement: {error}")
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
