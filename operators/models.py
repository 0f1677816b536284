"""Which weights a worker starts from: `model="tiny"` or a checkpoint folder in Hugging Face format.

tiny           made at first use in the run's folder, seeded by the run: a one-layer Llama over single characters
taught:DATA    the tiny one of that run, taught the answers of a data set (taught.py): a teacher for distillation
PATH           config.json, model.safetensors, tokenizer.json: one that a run saved, or one of yours
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlflow import Site
from rlflow.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TINY, TAUGHT = "tiny", "taught:"
TINY_CONTEXT = 512  # tokens of a prompt and what follows
TINY_ALPHABET = "\n 0123456789abcdefghijklmnopqrstuvwxyz,.?!:=+-()"


def model_folder(model: str, site: Site, kind: Literal["policy", "critic"] = "policy") -> Path:
    """The checkpoint folder of `model`; the tiny one, or a taught one, is made if it is not there yet.

    Raises UsageError for a folder that is none, DataError for data that cannot be taught.
    """
    if model == TINY:
        from rlflow.engines.tiny import make_tiny_model

        return make_tiny_model(
            tiny_folder(site.run_dir, kind),
            alphabet=TINY_ALPHABET,
            seed=site.seed,
            layers=1,
            kv_heads=4,
            max_position_embeddings=TINY_CONTEXT,
            kind=kind,
        )
    if model.startswith(TAUGHT) and kind == "policy":
        from .taught import taught_model

        data = model.removeprefix(TAUGHT)
        return taught_model(
            site.run_dir / "model" / f"taught-{Path(data).stem}-{zlib.crc32(data.encode()):08x}", model_folder(TINY, site), data, site.seed
        )
    return checkpoint_folder(model)


def tiny_folder(run_dir: Path, kind: str = "policy") -> Path:
    return run_dir / "model" / kind


def checkpoint_folder(model: str) -> Path:
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UsageError(f"model {model!r} is neither {TINY!r} nor a checkpoint folder: there is no {folder / 'config.json'}")
    return folder


def tokenizer_of(model: str) -> Tokenizer:
    """The tokenizer of `model`. That of the tiny one is its alphabet, whatever the seed."""
    from rlflow.engines.tiny import character_tokenizer, load_tokenizer

    return character_tokenizer(TINY_ALPHABET) if model == TINY else load_tokenizer(checkpoint_folder(model))


def context_of(model: str) -> int | None:
    """Tokens that `model` has positions for, prompt and answer together; None if its config.json does not say."""
    if model == TINY:
        return TINY_CONTEXT
    file = checkpoint_folder(model) / "config.json"
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}") from error
    found = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return int(found) if isinstance(found, int) else None
