"""A teacher that needs no download: the tiny model, taught the answers of a data set by supervised learning, in seconds.

    prompt + answer + <eos> ──cross-entropy on the answer──▶ RUN/model/taught     `model="taught:digits.parquet"`

Rows of the split "train" alone: what is held out is held out for it too. It ends when it has learnt them. Equal seeds and data give
equal weights.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlflow.errors import DataError

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

__all__ = ["taught_model"]

EPOCHS, ROWS, LEARNING_RATE = 60, 64, 3e-3  # at most; of an optimizer step; of AdamW
LEARNT = 0.02  # nats a token of an answer, mean of an epoch: it says the right one with 98 %

_log = logging.getLogger(__name__)


def taught_model(path: Path, start: Path, data: str, seed: int) -> Path:
    """The checkpoint at `path`: that of `start`, taught `data`; it is made if it is not there yet, and appears in one rename.

    Raises DataError for data that cannot be read, that the tokenizer of `start` has no tokens for, or that 60 epochs do not teach.
    """
    if path.exists():
        return path
    building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        shutil.copytree(start, building, dirs_exist_ok=True)
        _teach(building, data, seed)
        try:
            os.rename(building, path)
        except OSError:
            if not path.exists():  # else another process was first
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return path


def _teach(folder: Path, data: str, seed: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from rlflow.engines.tiny import load_tokenizer

    from .dataset import find_data, read_rows

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    input_ids, labels = _batch(load_tokenizer(folder), read_rows(find_data(data), "train"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    generator, losses = torch.Generator().manual_seed(seed), list[float]()
    for epoch in range(EPOCHS):
        losses = []
        order = torch.randperm(len(input_ids), generator=generator)
        for rows in (order[i : i + ROWS] for i in range(0, len(order), ROWS)):
            loss = model(input_ids=input_ids[rows], labels=labels[rows]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        if sum(losses) / len(losses) < LEARNT:
            _log.info("learnt %d rows of %s in %d epochs", len(input_ids), data, epoch + 1)
            model.save_pretrained(folder)
            return
    reached = f"{sum(losses) / len(losses):.3f} nats a token of an answer after {EPOCHS} epochs, and not {LEARNT}"
    raise DataError(f"the tiny model cannot be taught {data}: {reached}; give a checkpoint that knows it")


def _batch(tokenizer: Tokenizer, rows: dict[str, list[Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """i64[N, S] each: the tokens, right-padded, and those that are to be said: the answer's and <eos>, -100 elsewhere."""
    import torch

    from rlflow.engines.tiny import EOS_ID, PAD_ID, encode_text

    asked = [encode_text(tokenizer, prompt) for prompt in rows["prompt"]]
    said = [[*encode_text(tokenizer, answer), EOS_ID] for answer in rows["answer"]]
    width = max(len(a) + len(b) for a, b in zip(asked, said, strict=True))
    ids = [[*a, *b, *[PAD_ID] * (width - len(a) - len(b))] for a, b in zip(asked, said, strict=True)]
    labels = [[-100] * len(a) + [*b, *[-100] * (width - len(a) - len(b))] for a, b in zip(asked, said, strict=True)]
    return torch.tensor(ids), torch.tensor(labels)
