"""A teacher without a download: a tiny model that learns the answers of a data set, once a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import AutoModelForCausalLM

from operators.models import model_folder
from operators.trainers import TorchTeacher
from rlflow.engines.tiny import EOS_ID, encode_text, load_tokenizer, make_tiny_model
from rlflow.errors import DataError, UsageError
from rlflow.language.worker import Site

SUMS = [
    {"prompt": f"{a}+{b}=", "answer": str(a + b), "template": "_+_=", "split": "train", "task": "sum"} for a in range(8) for b in range(8)
]
NONSENSE = [{"prompt": "same? ", "answer": str(n), "template": "", "split": "train", "task": "x"} for n in range(64)]


def site(run_dir: Path, seed: int = 0) -> Site:
    return Site(name="teacher", rank=0, dp_size=1, run_dir=run_dir, seed=seed, rendezvous="")


def written(folder: Path, rows: list[dict[str, str]], name: str = "sums") -> str:
    parquet: Any = pyarrow.parquet
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


def test_it_says_the_answers_that_it_was_taught_and_then_ends(tmp_path: Path) -> None:
    folder = model_folder(f"taught:{written(tmp_path, SUMS)}", site(tmp_path))
    assert (folder.parent, folder.name[:12]) == (tmp_path / "model", "taught-sums-")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    for row in SUMS:
        ids = encode_text(tokenizer, row["prompt"])
        while len(ids) < 12 and ids[-1] != EOS_ID:
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert tokenizer.decode(ids[4:-1]) == row["answer"]


def test_it_is_taught_once_a_run_and_equal_seeds_give_equal_weights(tmp_path: Path) -> None:
    data = written(tmp_path, SUMS)
    (tmp_path / "a").mkdir()
    one, other = (model_folder(f"taught:{data}", site(tmp_path / run)) / "model.safetensors" for run in ("a", "b"))
    assert one.read_bytes() == other.read_bytes()
    made = one.stat().st_mtime_ns
    assert (model_folder(f"taught:{data}", site(tmp_path / "a")) / "model.safetensors").stat().st_mtime_ns == made
    (own, other_data) = (model_folder(f"taught:{one}", site(tmp_path / "a")) for one in (data, written(tmp_path / "b", SUMS)))
    assert sorted(p.name for p in (tmp_path / "a" / "model").iterdir()) == sorted(["policy", own.name, other_data.name])
    assert own.name != other_data.name  # of one name, in another folder: another teacher


def test_what_cannot_be_taught_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    data = written(tmp_path, NONSENSE, "nonsense")
    with pytest.raises(DataError, match=r"cannot be taught .*nonsense.parquet: \d\.\d+ nats a token of an answer after 60 epochs"):
        model_folder(f"taught:{data}", site(tmp_path))
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["policy"]


def test_a_teacher_of_other_tokens_is_refused_before_it_scores(tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", alphabet="0123456789", seed=0)
    with pytest.raises(UsageError, match=r"`teacher` \(.*other\) has other tokens than 'tiny', which is to learn from it"):
        TorchTeacher("teacher", model=str(other), learner="tiny").open(site(tmp_path))
