"""Tasks of reasoning-gym as prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from operators.evaluation import baselines_of
from operators.gym import gym_dataset
from operators.models import tokenizer_of
from operators.records import Prompts
from operators.reward import reasoning_gym_reward
from rlflow.errors import DataError

SUMS = '{"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'


def questions(split: Any = "train", **options: Any) -> Prompts:
    return gym_dataset("chain_sum", split=split, tokenizer="tiny", **({"size": 50, "options": SUMS, "lower": True} | options))


def texts(prompts: Prompts) -> list[str]:
    return [tokenizer_of("tiny").decode(row.tolist()) for row in prompts.prompt_ids]


def test_every_fifth_question_is_held_out_and_none_is_asked_twice() -> None:
    train, test = questions(), questions("test")
    assert (len(train.answer), len(test.answer), train.uid.tolist()) == (40, 10, list(range(40)))
    assert len({*texts(train), *texts(test)}) == 50
    entry = json.loads(train.answer[0])
    assert texts(train)[0] == entry["question"].lower()
    assert train.template == ["chain_sum"] * 40


def test_equal_arguments_make_equal_rows_and_another_seed_others() -> None:
    assert texts(questions()) == texts(questions())
    assert texts(questions()) != texts(questions(seed=1))


def test_the_answers_of_its_entries_are_right_to_its_scorer_and_others_are_not() -> None:
    prompts = questions("test")
    right = [json.loads(answer)["answer"] for answer in prompts.answer]
    mask = torch.ones(len(right), 1, dtype=torch.bool)
    assert reasoning_gym_reward(right, prompts.answer, mask).is_correct.tolist() == [1.0] * 10
    assert reasoning_gym_reward(["999"] * 10, prompts.answer, mask).is_correct.tolist() == [0.0] * 10


def test_guessing_is_measured_by_the_answers_in_the_entries() -> None:
    entries = [json.dumps({"question": str(i), "answer": answer}) for i, answer in enumerate("1123")]
    prompts: Any = Prompts(prompt_ids=torch.zeros(4, 1), uid=torch.arange(4), answer=entries, template=["t"] * 4)
    assert baselines_of(prompts)["best_constant"] == 0.5


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("chain_su", {}, "reasoning-gym makes no task 'chain_su' with .*not registered"),
        ("chain_sum", {"options": '{"foo": 1}'}, "unexpected keyword argument 'foo'"),
        ("chain_sum", {"options": '{"min_terms": -1}'}, "min_terms must be positive"),
        ("chain_sum", {"options": "{"}, "options of chain_sum are no JSON: '{'"),
        ("chain_sum", {"options": "[1]"}, r"options of chain_sum are '\[1\]'; give a JSON object"),
        ("chain_sum", {"options": SUMS, "size": 500}, r"gave \d+ different questions in 10000; ask for size=\d+"),
        ("chain_sum", {"size": 4}, "size=4: give at least 5 questions"),
        ("chain_sum", {"options": SUMS, "lower": False}, r"reasoning-gym's chain_sum, question 0 of train: .*\['S'\]"),
    ],
)
def test_what_cannot_be_asked_is_refused(task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        gym_dataset(task, tokenizer="tiny", **({"size": 20, "lower": True} | options))
