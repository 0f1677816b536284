"""A checkpoint of a train engine: a Hugging Face model folder with the trainer's state beside it. Nothing is pickled.

NAME/                       transformers loads this folder by itself
  config.json  model.safetensors  tokenizer.json ...
  trainer/optimizer.safetensors    exp_avg.PARAMETER, exp_avg_sq.PARAMETER
  trainer/rng.safetensors          one random state a rank
  trainer/state.json               version, steps, ..., and the size of every other file: written last

.NAME.PID.new ── files, fsync ──▶ NAME aside to .NAME.old ──▶ rename to NAME ──▶ remove .NAME.old
killed before the rename: NAME is what it was (or `recover` puts .NAME.old back); after it: NAME is the new one
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from rlflow.disk import sync
from rlflow.errors import EngineError

__all__ = ["FORMAT", "contents", "copy_tokenizer", "read", "recover", "write"]

FORMAT = 1
TRAINER, STATE = "trainer", "trainer/state.json"
DESCRIPTION = {"format", "files", "kind", "dp_size"}  # of the checkpoint itself: no state
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip


def write(path: Path, save_model: Callable[[Path], None], tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """Write a checkpoint to `path`, in place of the one there.

    save_model writes the model and tokenizer files into the folder given. tensors: file stem → named tensors. state: JSON data.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    _remove_leftovers(path)
    building = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        (building / TRAINER).mkdir(parents=True)
        save_model(building)
        for stem, named in tensors.items():
            save_file({name: tensor.cpu().contiguous() for name, tensor in named.items()}, building / TRAINER / f"{stem}.safetensors")
        files = {str(file.relative_to(building)): file.stat().st_size for file in sorted(building.rglob("*")) if file.is_file()}
        (building / STATE).write_text(json.dumps({"format": FORMAT, **state, "files": files}, indent=1))
        _sync_tree(building)
        _put_in_place(building, path)
    except Exception as error:
        shutil.rmtree(building, ignore_errors=True)
        recover(path)
        raise EngineError(f"the checkpoint {path} was not written ({error}); what was there before is unchanged") from error


def contents(path: Path) -> tuple[str, ...]:
    """What a checkpoint holds, by name, read off its files: "weights", then the stems of `trainer` and the numbers of state.json."""
    model = ("weights",) if any(path.glob("model*.safetensors")) else ()
    numbers = json.loads((path / STATE).read_text()).keys() - DESCRIPTION
    return *model, *sorted(file.stem for file in (path / TRAINER).glob("*.safetensors")), *sorted(numbers)


def read(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors and the state of a complete checkpoint. Raises EngineError if it is none, or lacks a byte."""
    recover(path)
    if not (path / STATE).is_file():
        raise EngineError(f"{path} is no complete checkpoint of a train engine: {STATE} is missing; choose one that is listed whole")
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_bytes())
    except ValueError as error:
        raise EngineError(f"{path / STATE} is damaged: {error}") from error
    if state.get("format") != FORMAT:
        raise EngineError(f"{path} has checkpoint format {state.get('format')!r}, this is {FORMAT}")
    for name, size in state["files"].items():
        found = (path / name).stat().st_size if (path / name).is_file() else None
        if found != size:
            now = "missing" if found is None else f"{found} bytes long"
            raise EngineError(f"{path}/{name} is {now}, {size} bytes were written: the checkpoint is damaged")
    return {file.stem: load_file(file) for file in sorted((path / TRAINER).glob("*.safetensors"))}, state


def recover(path: Path) -> None:
    """Finish or undo a replacement that a kill cut in two: the one moment in which `path` is missing."""
    aside = _aside(path)
    if aside.exists() and not path.exists():
        aside.rename(path)


def copy_tokenizer(source: Path, target: Path) -> None:
    """The tokenizer's files as they are: nothing that is loaded is written back changed."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _put_in_place(building: Path, path: Path) -> None:
    if path.exists():
        path.rename(_aside(path))
    building.rename(path)
    sync(path.parent)
    shutil.rmtree(_aside(path), ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _remove_leftovers(path: Path) -> None:
    for leftover in [*path.parent.glob(f".{glob.escape(path.name)}.*.new"), _aside(path)]:
        shutil.rmtree(leftover, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    for entry in [*folder.rglob("*"), folder]:
        sync(entry)
