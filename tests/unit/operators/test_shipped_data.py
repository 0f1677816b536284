"""The shipped data sets are what their script makes, and guessing is not worth much on them."""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest

from operators.baselines import blind_baselines
from operators.dataset import SHIPPED, dataset, read_rows
from operators.verifiers import reasoning_gym
from pipelines.data import make
from rlflow.errors import DataError

SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")
FILES = sorted(SHIPPED.glob("*.parquet"))


def rows_of(name: str) -> dict[str, dict[str, list[Any]]]:
    return {split: read_rows(SHIPPED / name, split) for split in SPLITS}


def test_there_are_five_small_files() -> None:
    names = ["calculator.parquet", "digits.parquet", "digits_mixed.parquet", "guess.parquet", "reasoning_gym.parquet"]
    assert [file.name for file in FILES] == names
    assert max(file.stat().st_size for file in FILES) < 200_000


@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("digits.parquet", make.digits(["largest"])),
        ("digits_mixed.parquet", make.digits(["largest", "middle", "smallest"])),
        ("guess.parquet", make.guess()),
        ("calculator.parquet", make.calculations()),
    ],
)
def test_the_script_still_makes_the_shipped_rows(name: str, questions: Iterable[make.Question]) -> None:
    import pyarrow.parquet as pq

    assert pq.read_table(SHIPPED / name).to_pylist() == make.split_rows(questions)


DIGITS = ["digits.parquet", "digits_mixed.parquet"]
PLACES = {"largest": 2, "middle": 1, "smallest": 0}


@pytest.mark.parametrize("name", DIGITS)
def test_answers_of_the_digits_are_right(name: str) -> None:
    for rows in rows_of(name).values():
        for prompt, answer in zip(rows["prompt"], rows["answer"], strict=True):
            assert answer == sorted(re.findall(r"\d", prompt))[PLACES[prompt.split()[0]]]


@pytest.mark.parametrize("name", DIGITS)
def test_no_digits_of_test_occur_in_train_in_any_order(name: str) -> None:
    operands = {split: {tuple(sorted(re.findall(r"\d", p))) for p in rows["prompt"]} for split, rows in rows_of(name).items()}
    assert not operands["train"] & operands["test"]
    assert (len(operands["train"]), len(operands["test"])) == (176, 44)


@pytest.mark.parametrize(("name", "rows", "constant", "blind"), [("digits.parquet", 222, 60, 60), ("digits_mixed.parquet", 666, 81, 162)])
def test_guessing_the_digits_is_worth_less_than_0_3(name: str, rows: int, constant: int, blind: int) -> None:
    import pyarrow.parquet as pq

    test = pq.read_table(SHIPPED / name, filters=[("split", "=", "test")]).to_pydict()
    most = Counter(zip(test["task"], test["answer"], strict=True))
    assert (len(test["answer"]), max(Counter(test["answer"]).values())) == (rows, constant)
    assert sum(max(most[word, str(digit)] for digit in range(10)) for word in PLACES) == blind
    baselines = blind_baselines(test["answer"], test["template"])
    assert (baselines.best_constant, baselines.best_blind) == (constant / rows, blind / rows)
    assert baselines.best_blind <= 0.3


def test_the_tiny_tokenizer_has_every_character_of_every_set() -> None:
    for file in FILES:
        for split in SPLITS:
            assert dataset(file.name, split=split, tokenizer="tiny").answer


def test_templates_hold_no_operand() -> None:
    for file in FILES:
        for rows in rows_of(file.name).values():
            assert not [template for template in set(rows["template"]) if re.search(r"\d", template.replace("1 bits", ""))]


def test_a_calculation_has_one_digit_for_an_answer_and_is_asked_once() -> None:
    compute = {"minus": operator.sub, "over": operator.truediv}
    asked = list[str]()
    for rows in rows_of("calculator.parquet").values():
        for prompt, answer in zip(rows["prompt"], rows["answer"], strict=True):
            left, word, right = prompt.removesuffix("? ").split()
            assert compute[word](int(left), int(right)) == int(answer)
            assert answer in "23456789"
            asked.append(prompt)
    assert len(asked) == len(set(asked)) == 554


def test_ranges_are_held_out_with_all_their_secrets() -> None:
    ranges: dict[str, dict[str, list[int]]] = {}
    for split, rows in rows_of("guess.parquet").items():
        ranges[split] = {}
        for prompt, answer in zip(rows["prompt"], rows["answer"], strict=True):
            ranges[split].setdefault(prompt, []).append(int(answer))
    assert not ranges["train"].keys() & ranges["test"].keys()
    assert (len(ranges["train"]), len(ranges["test"])) == (22, 6)
    for prompt, secrets in (ranges["train"] | ranges["test"]).items():
        low, high = map(int, re.findall(r"\d+", prompt))
        assert sorted(secrets) == list(range(low, high + 1))


def test_the_scorer_of_reasoning_gym_knows_every_entry() -> None:
    for rows in rows_of("reasoning_gym.parquet").values():
        assert {reasoning_gym(json.loads(answer)["answer"], answer) for answer in rows["answer"]} == {1.0}


def test_a_set_that_a_guess_solves_is_not_written(tmp_path: Path) -> None:
    same = [make.Question(f"{n}?", "yes", "_?", "same", (n,), "yes") for n in range(10)]
    with pytest.raises(DataError, match=r"x.parquet: guessing without the operands gets 1.000 of the test rows right"):
        make.write(tmp_path, "x.parquet", same, max_blind=0.3)
    assert not list(tmp_path.iterdir())


def test_one_combination_in_five_is_held_out_whole() -> None:
    rows = make.split_rows(make.Question(f"{n} {order}?", str(n), "_?", "t", (n,), str(n)) for n in range(20) for order in "ab")
    splits = {n: {row["split"] for row in rows if row["answer"] == str(n)} for n in range(20)}
    assert Counter(len(split) for split in splits.values()) == {1: 20}
    assert Counter(*[[min(split) for split in splits.values()]]) == {"train": 16, "test": 4}
