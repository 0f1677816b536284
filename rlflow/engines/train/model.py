"""Checkpoint folder (config.json, model.safetensors, tokenizer.json) → a model that scores and trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.utils import logging as _logging

from rlflow.errors import EngineError

__all__ = ["Kind", "load_model", "quiet_transformers"]

Kind = Literal["policy", "critic"]
hf_logging: Any = _logging  # untyped in transformers
VALUE_HEAD = "score."  # of AutoModelForTokenClassification


def load_model(path: Path, *, kind: Kind, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """The model of a Hugging Face checkpoint, in eval mode (no dropout), with SDPA attention.

    policy: a causal language model. critic: the same trunk with one value a token; if the checkpoint has no value head (it is that of a
    policy) the head is drawn from `seed`, equal on all ranks. torch's global random state is left as it was.

    Raises EngineError if there is no checkpoint, or if it lacks weights of the model (they would be random) or has others.
    """
    if not (path / "config.json").is_file():
        raise EngineError(f"{path} has no config.json; a checkpoint folder holds config.json, model.safetensors and tokenizer.json")
    auto: Any = AutoModelForCausalLM if kind == "policy" else AutoModelForTokenClassification
    options: dict[str, Any] = {} if kind == "policy" else {"num_labels": 1}
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        try:
            model, report = auto.from_pretrained(
                path, dtype=dtype, output_loading_info=True, local_files_only=True, **_implementations(dtype), **options
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"the checkpoint {path} cannot be loaded as a {kind}: {error}") from error
    _check_complete(path, kind, report)
    return model.eval().to(device)


def _implementations(dtype: torch.dtype) -> dict[str, str]:
    """Of attention, and of experts where there are any: the grouped product of transformers' default knows no float64."""
    return {"attn_implementation": "sdpa"} | ({"experts_implementation": "eager"} if dtype == torch.float64 else {})


def _check_complete(path: Path, kind: Kind, report: dict[str, Any]) -> None:
    head = VALUE_HEAD if kind == "critic" else "\0"
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(head))
    unexpected = sorted(key for key in report["unexpected_keys"] if not (kind == "critic" and key.startswith("lm_head.")))
    wrong = sorted(map(str, report["mismatched_keys"]))
    if missing or unexpected or wrong:
        raise EngineError(
            f"{path} is no checkpoint of this {kind} (up to five of each): "
            f"missing {missing[:5]}, unexpected {unexpected[:5]}, of another shape {wrong[:5]}"
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Neither progress bars nor the table of new and unused keys: `_check_complete` judges those."""
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
