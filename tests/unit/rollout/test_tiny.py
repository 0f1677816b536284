"""The tiny checkpoint: reproducible, loadable, and a tokenizer that gives text back exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlflow.engines.tiny import EOS_ID, PAD_ID, encode_text, load_tokenizer, make_tiny_model
from rlflow.errors import DataError

ALPHABET = "0123456789+-= <eos>\né"
SMALL: dict[str, Any] = {"alphabet": ALPHABET, "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "max_position_embeddings": 32}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "a", seed=0, **SMALL)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_the_files_of_a_checkpoint(made: Path) -> None:
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert wanted <= set(contents(made))


def test_one_seed_one_sequence_of_bytes(made: Path, tmp_path: Path) -> None:
    assert contents(make_tiny_model(tmp_path / "b", seed=0, **SMALL)) == contents(made)


def test_another_seed_other_weights(made: Path, tmp_path: Path) -> None:
    other = contents(make_tiny_model(tmp_path / "b", seed=1, **SMALL))
    assert other["model.safetensors"] != contents(made)["model.safetensors"]


def test_torchs_random_state_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    make_tiny_model(tmp_path / "b", seed=5, **SMALL)
    assert torch.equal(before, torch.get_rng_state())


def test_the_same_call_again_keeps_what_is_there(made: Path) -> None:
    written = (made / "model.safetensors").stat().st_mtime_ns
    assert make_tiny_model(made, seed=0, **SMALL) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == written


def test_another_model_at_the_same_path_is_refused(made: Path) -> None:
    with pytest.raises(DataError, match=r"already holds another model \(differs in layers, seed\)"):
        make_tiny_model(made, seed=1, **(SMALL | {"layers": 2}))


def test_nothing_is_left_behind_by_a_failure(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must divide by heads"):
        make_tiny_model(tmp_path / "x", seed=0, **(SMALL | {"heads": 3}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_policy_gives_logits_over_the_vocabulary(tmp_path: Path, architecture: Any) -> None:
    from transformers import AutoModelForCausalLM

    path = make_tiny_model(tmp_path / "p", seed=0, **SMALL, architecture=architecture)
    model: Any = AutoModelForCausalLM.from_pretrained(path)
    assert model.config.model_type == architecture
    assert model(torch.tensor([[1, 5, 6]])).logits.shape == (1, 3, 3 + len(ALPHABET))
    assert model.generation_config.eos_token_id == EOS_ID


def test_a_critic_gives_one_value_a_token(tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    model: Any = AutoModelForTokenClassification.from_pretrained(make_tiny_model(tmp_path / "c", seed=0, **SMALL, kind="critic"))
    assert model(torch.tensor([[1, 5, 6]])).logits.shape == (1, 3, 1)


@given(text=st.text(alphabet=ALPHABET, max_size=40))
def test_text_survives_encoding(made: Path, text: str) -> None:
    tokenizer = load_tokenizer(made)
    ids = encode_text(tokenizer, text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_the_text_of_a_special_token_is_not_the_token(made: Path) -> None:
    ids = encode_text(load_tokenizer(made), "<eos>")
    assert len(ids) == 5
    assert EOS_ID not in ids


def test_special_tokens_are_left_out_of_text(made: Path) -> None:
    tokenizer = load_tokenizer(made)
    assert tokenizer.decode([*encode_text(tokenizer, "1+2"), EOS_ID, PAD_ID]) == "1+2"


def test_unknown_characters_are_named(made: Path) -> None:
    with pytest.raises(DataError, match=r"no token for \['A', 'B'\] in '1AB2'"):
        encode_text(load_tokenizer(made), "1AB2")


def test_transformers_reads_the_same_tokenizer(made: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs: Any = PreTrainedTokenizerFast.from_pretrained(made)
    assert theirs("1 + 2\n<eos>").input_ids == encode_text(load_tokenizer(made), "1 + 2\n<eos>")
    assert (theirs.pad_token_id, theirs.eos_token_id) == (PAD_ID, EOS_ID)
