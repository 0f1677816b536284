"""Prompts from parquet, dispatch, forming a batch, and what guessing is worth."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from operators.baselines import Baselines, blind_baselines
from operators.batching import dispatch, form_batch, group_rows
from operators.dataset import SHIPPED, dataset, find_data
from operators.records import Prompts, Trajectories
from rlflow import Record
from rlflow.errors import DataError

ALPHABET = "0123456789+="  # ids 0 .. 11
Write = Callable[..., str]


def save_tokenizer(folder: Path, model: Any, **config: int) -> str:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config))  # what makes a folder a checkpoint
    return str(folder)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return save_tokenizer(tmp_path / "model", models.WordLevel(vocab={c: i for i, c in enumerate(ALPHABET)}))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**changes: list[Any] | None) -> str:
        columns: dict[str, list[Any] | None] = {
            "prompt": ["1+2=", "10+2=", "3+3="],
            "answer": ["3", "12", "6"],
            "template": ["a+b=", "a+b=", "a+b="],
            "split": ["train", "test", "train"],
            "task": ["sum", "sum", "sum"],
        }
        columns |= changes
        file = tmp_path / "data.parquet"
        pq.write_table(pa.table({name: values for name, values in columns.items() if values is not None}), file)
        return str(file)

    return write


def ragged(prompts: Prompts) -> list[list[int]]:
    return [ids.tolist() for ids in prompts.prompt_ids]


# --- dataset ----------------------------------------------------------------------------------------------------------------------------
def test_the_rows_of_a_split_in_the_order_of_the_file(write: Write, tokenizer: str) -> None:
    prompts = dataset(write(), split="train", tokenizer=tokenizer)
    assert ragged(prompts) == [[1, 10, 2, 11], [3, 10, 3, 11]]
    assert prompts.uid.tolist() == [0, 1]
    assert (prompts.answer, prompts.template) == (["3", "6"], ["a+b=", "a+b="])
    assert {ids.dtype for ids in prompts.prompt_ids} == {np.dtype(np.int64)}


def test_prompts_keep_their_true_lengths(write: Write, tokenizer: str) -> None:
    prompts = dataset(write(split=["test"] * 3, prompt=["00", "0", "1+2="]), split="test", tokenizer=tokenizer)
    assert ragged(prompts) == [[0, 0], [0], [1, 10, 2, 11]]  # token 0 is a digit here: padding with 0 would lose it


def test_limit_takes_the_first_rows(write: Write, tokenizer: str) -> None:
    assert dataset(write(), tokenizer=tokenizer, limit=1).answer == ["3"]
    assert dataset(write(), tokenizer=tokenizer, limit=9).answer == ["3", "6"]


def test_answers_say_which_task_they_are_of_if_that_is_asked_for(write: Write, tokenizer: str) -> None:
    prompts = dataset(write(task=["sum", "no", "pro duct"]), tokenizer=tokenizer, tag_tasks=True)
    assert prompts.answer == ['{"task": "sum", "answer": "3"}', '{"task": "pro duct", "answer": "6"}']


def test_a_column_task_is_needed_for_tags_only(write: Write, tokenizer: str) -> None:
    file = write(task=None)
    assert dataset(file, tokenizer=tokenizer).answer == ["3", "6"]
    with pytest.raises(DataError, match="has no column 'task', only prompt, answer, template, split"):
        dataset(file, tokenizer=tokenizer, tag_tasks=True)


def test_a_relative_path_is_looked_for_here_first(write: Write, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(write())
    monkeypatch.chdir(file.parent)
    assert find_data("data.parquet") == file


def test_a_bare_name_finds_a_shipped_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in SHIPPED.glob("*.parquet"):
        assert find_data(file.name) == file


def test_a_file_that_is_nowhere_lists_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"no data set 'x.parquet': looked for {tmp_path}/x.parquet and .*/pipelines/data/x.parquet"):
        find_data("x.parquet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": None}, "has no column 'answer', only prompt, template, split, task"),
        ({"answer": None, "answers": ["3", "12", "6"]}, "no column 'answer'.*is it 'answers'"),
        ({"answer": [3, 12, 6]}, "column 'answer' is int64; it must be string"),
        ({"split": ["test"] * 3}, r"no row of split 'train'; its 3 rows are of \['test'\]"),
        ({"prompt": [], "answer": [], "template": [], "split": [], "task": []}, "column 'prompt' is null"),
        ({"prompt": ["1", "2", None]}, "row 2: prompt is null"),
        ({"answer": ["1", "2", None]}, "row 2: answer is null"),
        ({"split": ["train", None, "train"]}, "row 1: split is null"),
        ({"prompt": ["1", "2", ""]}, "row 2: the prompt '' has no tokens"),
        ({"prompt": ["1", "2", "3?"]}, r"row 2: the tokenizer has no token for .*\?"),
    ],
)
def test_p12_a_bad_file_is_refused_by_name(write: Write, tokenizer: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(write(**changes), tokenizer=tokenizer)


def test_a_prompt_that_fills_the_context_is_refused_by_row(write: Write, tmp_path: Path) -> None:
    vocab = models.WordLevel(vocab={c: i for i, c in enumerate(ALPHABET)})
    five = save_tokenizer(tmp_path / "five", vocab, max_position_embeddings=5)
    assert ragged(dataset(write(prompt=["1+2="] * 3), tokenizer=five))[0] == [1, 10, 2, 11]  # 4 tokens leave room for one
    file = write(prompt=["1+2=", "10+2=", "10+3="])
    with pytest.raises(DataError, match=r"data\.parquet, row 2: the prompt '10\+3='\.\.\. has 5 tokens, the model's context holds 5"):
        dataset(file, tokenizer=five)
    with pytest.raises(DataError, match="row 1: the prompt"):
        dataset(file, split="test", tokenizer=five)


def test_the_context_of_the_tiny_model(write: Write) -> None:
    assert len(dataset(write(prompt=["1" * 511, "1", "1"]), tokenizer="tiny").prompt_ids[0]) == 511
    with pytest.raises(DataError, match=r"row 0: .* has 512 tokens, the model's context holds 512"):
        dataset(write(prompt=["1" * 512, "1", "1"]), tokenizer="tiny")


def test_rows_of_another_split_may_be_incomplete(write: Write, tokenizer: str) -> None:
    assert dataset(write(prompt=["1+2=", None, "3+3="]), tokenizer=tokenizer).answer == ["3", "6"]


def test_a_tokenizer_that_maps_the_unknown_to_one_token_loses_text(write: Write, tmp_path: Path) -> None:
    vocab = {"[UNK]": 0} | {c: i + 1 for i, c in enumerate(ALPHABET)}
    unknowing = save_tokenizer(tmp_path / "unk", models.WordLevel(vocab=vocab, unk_token="[UNK]"))
    with pytest.raises(DataError, match=r"row 0: the tokenizer has no token for '\?' in '1\?'"):
        dataset(write(prompt=["1?", "2", "3"]), tokenizer=unknowing)


def test_a_tokenizer_that_drops_characters_loses_text(write: Write, tmp_path: Path) -> None:
    dropping = save_tokenizer(tmp_path / "bpe", models.BPE(vocab={c: i for i, c in enumerate(ALPHABET)}, merges=[]))
    with pytest.raises(DataError, match=r"row 2: the tokenizer has no token for '\?' in '3\?'"):
        dataset(write(prompt=["1", "2", "3?"]), tokenizer=dropping)


def test_a_file_that_is_no_parquet(tmp_path: Path, tokenizer: str) -> None:
    file = tmp_path / "data.parquet"
    file.write_text("prompt,answer")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        dataset(str(file), tokenizer=tokenizer)


def test_a_torn_parquet_file(write: Write, tokenizer: str) -> None:
    file = write()
    os.truncate(file, 200)
    with pytest.raises(DataError, match="cannot be read as parquet"):
        dataset(file, tokenizer=tokenizer)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(write: Write, tokenizer: str, limit: int) -> None:
    with pytest.raises(DataError, match=f"limit={limit}"):
        dataset(write(), tokenizer=tokenizer, limit=limit)


# --- dispatch and form_batch ------------------------------------------------------------------------------------------------------------
def test_dispatch_repeats_ragged_prompts(write: Write, tokenizer: str) -> None:
    sent = dispatch(dataset(write(), tokenizer=tokenizer), n=2)
    assert [ids.tolist() for ids in sent.prompt_ids] == [[1, 10, 2, 11], [1, 10, 2, 11], [3, 10, 3, 11], [3, 10, 3, 11]]
    assert (sent.uid.tolist(), sent.traj_uid.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert sent.answer == ["3", "3", "6", "6"]


def test_dispatch_repeats_padded_tensors() -> None:
    prompts = Prompts(prompt_ids=torch.tensor([[5, 6], [7, 0]]), uid=torch.tensor([4, 9]), answer=["a", "b"], template=["t", "t"])
    sent = dispatch(prompts, n=2)
    assert sent.prompt_ids.tolist() == [[5, 6], [5, 6], [7, 0], [7, 0]]
    assert (sent.uid.tolist(), sent.traj_uid.tolist()) == ([4, 4, 9, 9], [0, 1, 0, 1])
    assert (sent.uid.dtype, sent.traj_uid.dtype) == (torch.int64, torch.int64)


def test_dispatch_to_nobody_is_refused() -> None:
    prompts = Prompts(prompt_ids=torch.tensor([[5]]), uid=torch.tensor([4]), answer=["a"], template=["t"])
    with pytest.raises(DataError, match=r"dispatch\(n=0\)"):
        dispatch(prompts, n=0)


def trajectories(uids: list[int]) -> Trajectories:
    count = range(len(uids))
    return Trajectories(
        prompt_ids=torch.tensor([[row] for row in count]),
        uid=torch.tensor(uids),
        traj_uid=torch.tensor(list(count)),
        answer=[f"row {row}" for row in count],
    )


def test_form_batch_takes_whole_groups_of_the_oldest_uids() -> None:
    batch = form_batch(trajectories([7, 5, 5, 9, 7, 5]), prompts=2)
    assert batch.uid.tolist() == [7, 7, 5, 5, 5]
    assert batch.prompt_ids.tolist() == [[0], [4], [1], [2], [5]]
    assert batch.answer == ["row 0", "row 4", "row 1", "row 2", "row 5"]


def test_groups_of_different_sizes_stay_whole() -> None:
    assert group_rows([1, 2, 2, 2, 3, 3, 4], prompts=3) == [0, 1, 2, 3, 4, 5]


def test_a_batch_of_more_prompts_than_there_are_is_refused() -> None:
    with pytest.raises(DataError, match="a batch of 3 prompts was asked of rows of 2"):
        form_batch(trajectories([1, 1, 2]), prompts=3)


def test_rows_without_a_uid_have_no_groups() -> None:
    class Nameless(Record):
        answer: list[str]

    with pytest.raises(DataError, match="form_batch needs a `uid` in Nameless"):
        form_batch(Nameless(answer=["a"]), prompts=1)


# --- what guessing is worth -------------------------------------------------------------------------------------------------------------
def test_blind_baselines_by_hand() -> None:
    answers = ["1", "1", "2", "3", "3", "3"]
    templates = ["max", "max", "max", "min", "min", "max"]
    assert blind_baselines(answers, templates) == Baselines(best_constant=3 / 6, best_blind=4 / 6, constant="3")


def test_one_template_makes_the_blind_guess_a_constant() -> None:
    assert blind_baselines(["a", "b", "a", "c"], ["t"] * 4) == Baselines(best_constant=0.5, best_blind=0.5, constant="a")


@pytest.mark.parametrize(("answers", "templates"), [([], []), (["1"], [])])
def test_baselines_of_nothing_are_refused(answers: list[str], templates: list[str]) -> None:
    with pytest.raises(DataError, match="one template an answer"):
        blind_baselines(answers, templates)
