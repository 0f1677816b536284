"""A judge against labels: the numbers worked out by hand, rows read from files, and the shipped verifiers on the shipped labels."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from operators.judge_agreement import Agreement, Confusion, Labelled, agreement, main, read_labelled
from operators.records import Scores
from operators.reward import RewardFn, exact_match, integer_match, math_reward, number_match
from rlflow.errors import DataError
from rlflow.measure import collected, note


def judged(verdicts: list[float]) -> Scores:
    return Scores(token_level_scores=torch.tensor(verdicts)[:, None], is_correct=torch.tensor(verdicts))


def says_one(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    """Right is what says "yes"."""
    return judged([float("yes" in text) for text in texts])


def likes_long(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    return judged([float(len(text) > 5) for text in texts])


def tires(texts: list[str], answers: list[str], mask: torch.Tensor) -> Scores:
    """Finds the first half right."""
    return judged([float(place < len(texts) / 2) for place in range(len(texts))])


def rows_of(*pairs: tuple[str, int], times: int = 1) -> list[Labelled]:
    return [Labelled(text, "", bool(label)) for text, label in pairs for _ in range(times)]


# --- by hand ----------------------------------------------------------------------------------------------------------------------------
def test_kappa_by_hand() -> None:
    table = Confusion(true_right=20, false_right=5, false_wrong=10, true_wrong=15)
    assert (table.rows, table.accuracy, table.precision) == (50, 0.7, 0.8)
    assert table.recall == pytest.approx(2 / 3)
    assert table.kappa == pytest.approx(0.4)  # p_e = 25/50 · 30/50 + 25/50 · 20/50 = 0.5; (0.7 - 0.5) / 0.5


@pytest.mark.parametrize(
    ("table", "kappa"),
    [
        (Confusion(3, 0, 0, 5), 1.0),
        (Confusion(0, 4, 4, 0), -1.0),  # p_o 0, p_e 0.5
        (Confusion(4, 4, 4, 4), 0.0),
        (Confusion(9, 0, 0, 0), 0.0),  # both always say right: so would chance
        (Confusion(45, 15, 25, 15), 1 / 7.666666666666667),  # p_o 0.6, p_e .6·.7 + .4·.3 = 0.54: 0.06 / 0.46
    ],
)
def test_kappa(table: Confusion, kappa: float) -> None:
    assert table.kappa == pytest.approx(kappa)


def test_precision_and_recall_of_nothing_are_zero() -> None:
    table = Confusion(0, 0, 0, 7)
    assert (table.precision, table.recall, table.accuracy) == (0.0, 0.0, 1.0)


def test_every_row_is_counted_where_it_belongs() -> None:
    rows = rows_of(("yes", 1), ("no", 1), ("yes", 0), ("no", 0), ("no", 0), ("yes", 1))
    found = agreement(says_one, rows)
    assert found.confusion == Confusion(true_right=2, false_right=1, false_wrong=1, true_wrong=2)
    assert (found.wrong, found.changed_by_order, found.failed) == ((1, 2), 0.0, {})


def test_a_judge_that_likes_long_answers_is_seen() -> None:
    rows = rows_of(("short", 1), ("rather long", 0), ("short", 0), ("rather long", 1), times=4)
    found = agreement(likes_long, rows)
    # judge - label: -1, 1, 0, 0; length 5, 11, 5, 11: covariance (-1·-3 + 1·3) / 4 = 1.5, deviations 0.7071 and 3
    assert found.length_bias == pytest.approx(1.5 / (0.5**0.5 * 3))
    assert agreement(says_one, rows).length_bias == 0.0  # says wrong of all: as often of long ones


def test_a_judge_that_goes_by_place_is_seen() -> None:
    found = agreement(tires, rows_of(("same", 1), times=8))
    assert found.changed_by_order == 1.0
    # judge - label is 0 four times, then -1 four times, at places 0 .. 7: -1 in covariance, deviations 0.5 and √5.25
    assert found.position_bias == pytest.approx(-1.0 / (0.5 * 5.25**0.5))


def test_rows_without_a_verdict_are_counted_and_wrong() -> None:
    rows = [Labelled("7", "7", True), Labelled("7", "seven", True), Labelled("8", "7", False)]
    found = agreement(integer_match, rows)
    assert (found.failed, found.confusion) == ({"failed/error": 1.0}, Confusion(1, 0, 1, 1))


def test_numbers_that_were_noted_before_stay() -> None:
    collected()
    note("mine", 3.0)
    agreement(says_one, rows_of(("yes", 1)))
    assert collected() == {"mine": 3.0}


def test_nothing_to_measure_against() -> None:
    with pytest.raises(DataError, match="no labelled rows"):
        agreement(says_one, [])


# --- files ------------------------------------------------------------------------------------------------------------------------------
def test_json_lines_and_parquet_hold_the_same(tmp_path: Path) -> None:
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text(
        '{"response_text": "ü\\n", "answer": "7", "label": 1, "more": 2}\n{"response_text": "", "answer": "8", "label": false}\n'
    )
    pq.write_table(pa.table({"response_text": ["ü\n", ""], "answer": ["7", "8"], "label": [True, False]}), table)
    assert read_labelled(str(lines)) == read_labelled(str(table)) == [Labelled("ü\n", "7", True), Labelled("", "8", False)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "row 1 is no JSON"),
        ("[1]", "row 1 has no object"),
        ('{"response_text": "a", "label": 1}', "row 1 has no answer; a row has response_text, answer, label"),
        ('{"response_text": "a", "answer": "b", "label": null}', "row 1 has no label"),
        ('{"response_text": "a", "answer": "b", "label": 0.5}', r"row 1: label is 0\.5; it is 1 or true"),
        ('{"response_text": "a", "answer": "b", "label": "yes"}', "row 1: label is 'yes'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"response_text": "a", "answer": "b", "label": 1}\n' + line + "\n")
    with pytest.raises(DataError, match=said):
        read_labelled(str(file))


def test_a_file_that_is_not_there_or_is_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no labelled file 'nowhere\.jsonl'"):
        read_labelled("nowhere.jsonl")
    (tmp_path / "a.parquet").write_text("x")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_labelled(str(tmp_path / "a.parquet"))


# --- the shipped labels -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reward", "table"),
    [
        (exact_match, Confusion(true_right=3, false_right=0, false_wrong=25, true_wrong=28)),
        (integer_match, Confusion(true_right=13, false_right=7, false_wrong=15, true_wrong=21)),
        (number_match, Confusion(true_right=18, false_right=1, false_wrong=10, true_wrong=27)),
        (math_reward, Confusion(true_right=22, false_right=3, false_wrong=6, true_wrong=25)),
    ],
)
def test_the_shipped_verifiers_on_the_shipped_labels(reward: RewardFn, table: Confusion) -> None:
    found: Agreement = agreement(reward, read_labelled("labelled_answers.jsonl"))
    assert (found.confusion, found.changed_by_order) == (table, 0.0)


def test_the_command_prints_what_was_found() -> None:
    said: list[str] = []
    assert main(["operators.reward:number_match", "labelled_answers.jsonl"], said.append) == 0
    assert "operators.reward:number_match on 56 labelled responses" in said[0]
    assert "judged right            18           1\njudged wrong            10          27\n" in said[0]
    assert "accuracy 0.804  precision 0.947  recall 0.643  kappa 0.607" in said[0]
    assert "failed/error: 9 rows" in said[0]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage: python -m operators.judge_agreement"),
        (["operators.reward:nothing", "labelled_answers.jsonl"], 2, "nothing"),
        (["operators.reward:number_match", "nowhere.jsonl"], 1, "no labelled file"),
    ],
)
def test_the_command_refuses(arguments: list[str], code: int, said: str) -> None:
    told: list[str] = []
    assert main(arguments, told.append) == code
    assert said in told[0]
