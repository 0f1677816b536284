"""Which weights a worker starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from operators.models import TINY, TINY_ALPHABET, TINY_CONTEXT, checkpoint_folder, context_of, model_folder, tiny_folder, tokenizer_of
from rlflow.errors import UsageError
from rlflow.language.worker import Site


def site(run_dir: Path, seed: int = 0) -> Site:
    return Site(name="actor", rank=0, dp_size=1, run_dir=run_dir, seed=seed, rendezvous="")


def test_the_tiny_model_is_made_in_the_folder_of_the_run_and_is_one_for_all(tmp_path: Path) -> None:
    made = model_folder(TINY, site(tmp_path))
    assert made == tiny_folder(tmp_path) == tmp_path / "model" / "policy"
    weights = (made / "model.safetensors").read_bytes()
    assert model_folder(TINY, site(tmp_path)) == made
    assert (made / "model.safetensors").read_bytes() == weights


def test_its_weights_are_those_of_the_seed(tmp_path: Path) -> None:
    folders = [model_folder(TINY, site(tmp_path / name, seed)) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_a_critic_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert model_folder(TINY, site(tmp_path), "critic") == tmp_path / "model" / "critic"


def test_a_folder_without_a_config_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"is neither 'tiny' nor a checkpoint folder: there is no {tmp_path}/config.json"):
        checkpoint_folder(str(tmp_path))


def test_the_tokenizer_of_the_tiny_model_knows_every_character_of_its_alphabet(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(TINY)
    ids = tokenizer.encode(TINY_ALPHABET, add_special_tokens=False).ids
    assert len(ids) == len(set(ids)) == len(TINY_ALPHABET)
    assert tokenizer.decode(ids) == TINY_ALPHABET
    saved = tokenizer_of(str(model_folder(TINY, site(tmp_path))))  # what a run that goes on from a checkpoint uses
    assert saved.encode(TINY_ALPHABET, add_special_tokens=False).ids == ids


def test_the_context_is_that_of_the_model_that_is_made(tmp_path: Path) -> None:
    assert context_of(TINY) == TINY_CONTEXT == 512
    assert context_of(str(model_folder(TINY, site(tmp_path)))) == 512


def test_a_config_that_does_not_say_has_no_known_context(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert context_of(str(tmp_path)) is None


def test_a_torn_config_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position')
    with pytest.raises(UsageError, match=f"{tmp_path}/config.json is no JSON"):
        context_of(str(tmp_path))
