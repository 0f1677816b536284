"""The model's parameters: read a bucket, write it, release, fingerprint. Knows no requests and no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from rlflow.engines.rollout.checksum import tensor_checksum
from rlflow.errors import EngineError

__all__ = ["Weights", "read_folder", "read_safetensors"]


def read_safetensors(files: list[bytes]) -> dict[str, Tensor]:
    """Tensors of safetensors files given as bytes. Raises EngineError for anything else."""
    tensors: dict[str, Tensor] = {}
    for data in files:
        try:
            tensors.update(load(data))
        except (SafetensorError, ValueError, KeyError) as error:
            raise EngineError(f"serialized_named_tensors holds something that is no safetensors file: {error}") from error
    return tensors


def read_folder(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder's *.safetensors files."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{path} holds no *.safetensors file")
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise EngineError(f"{path}: {error}") from error


class Weights:
    """The parameters of one model, by Hugging Face name."""

    def __init__(self, model: Any) -> None:
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        owner = {id(p): name for name, p in self.parameters.items()}
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        every = dict(model.named_parameters(remove_duplicate=False))
        self.tied = {name: owner[id(every[name])] for name in names if owner[id(every[name])] != name}
        self.shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        self.released = False
        self.missing: set[str] = set()  # released, and not written again since

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parameters.values())

    @property
    def usable(self) -> bool:
        return not self.released and not self.missing

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise EngineError for a name that the model does not have, or another shape; nothing is written."""
        unknown = sorted(n for n in tensors if self.tied.get(n, n) not in self.parameters)
        if unknown:
            known = sorted(self.parameters)[0]
            raise EngineError(f"the model has no parameter {unknown[0]!r} ({len(unknown)} unknown); it has e.g. {known!r}")
        for name, tensor in tensors.items():
            wanted = self.shapes[self.tied.get(name, name)]
            if tuple(tensor.shape) != wanted:
                raise EngineError(f"parameter {name!r} has shape {wanted}, but the update brings {tuple(tensor.shape)}")
        if self.released:
            raise EngineError("the weights are released; resume_memory_occupation(weights) first")

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy checked tensors in, cast to the parameter's dtype."""
        for name, tensor in tensors.items():
            owner = self.tied.get(name, name)
            self.parameters[owner].data.copy_(tensor)
            self.missing.discard(owner)

    def release(self) -> None:
        for parameter in self.parameters.values():
            parameter.data = torch.empty(0, dtype=parameter.dtype)
        self.released, self.missing = True, set(self.parameters)

    def resume(self) -> None:
        """Memory is there again, its values are not: every parameter has to be written before the model may run."""
        for name, parameter in self.parameters.items():
            parameter.data = torch.zeros(self.shapes[name], dtype=parameter.dtype)
        self.released = False

    def checksums(self) -> dict[str, str]:
        own = {name: tensor_checksum(p) for name, p in self.parameters.items()}
        return own | {name: own[owner] for name, owner in self.tied.items()}

    def get(self, name: str) -> Tensor | None:
        return self.parameters.get(self.tied.get(name, name))
