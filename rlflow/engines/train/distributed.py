"""Data-parallel ranks: sums of gradients, and small words (JSON) from each to all. Every wait has a name and a bound.

    Ranks(rank, size=1)     no group: every sum is the rank's own
    Ranks(rank, size>1)     torch.distributed over a file rendezvous: gloo on CPU, nccl on CUDA

A rank that fails tells the others in the next exchange, instead of leaving them in a collective.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlflow.errors import EngineError, WaitTimeout

__all__ = ["BUCKET_BYTES", "Ranks"]

BUCKET_BYTES = 64 << 20  # gradients are summed in flat pieces of this size: few collectives, bounded extra memory


class Ranks:
    """This rank's view of its group. All methods but the properties are collective."""

    def __init__(self, rank: int, size: int, *, rendezvous: str, device: torch.device, timeout_s: float) -> None:
        """Join the group. rendezvous: a `file:///...` that no group used before; only read if size > 1. timeout_s: bound of every wait."""
        if not 0 <= rank < size:
            raise EngineError(f"rank {rank} of {size}: ranks are 0 .. dp_size - 1")
        self.rank, self.size = rank, size
        self._device, self._timeout_s = device, timeout_s
        if size == 1:
            return
        if dist.is_initialized():
            raise EngineError("this process already belongs to a group of ranks: one engine with dp_size > 1 a process")
        if not rendezvous.startswith("file://"):
            raise EngineError(f"rendezvous is {rendezvous!r}; give a file:///... on this machine")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a file rendezvous is one machine: listen on loopback only
        backend = "nccl" if device.type == "cuda" else "gloo"
        with self._wait("joining the group"):
            dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))

    def exchange(self, word: Any, what: str) -> list[Any]:
        """Each rank's word (plain JSON data), in the order of ranks."""
        if self.size == 1:
            return [word]
        text = torch.frombuffer(bytearray(json.dumps(word).encode()), dtype=torch.uint8).to(self._device)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        with self._wait(what):
            dist.all_gather(lengths, torch.tensor([text.numel()], device=self._device))
            longest = max(int(n) for n in lengths)
            padded = text.new_zeros(longest)
            padded[: text.numel()] = text
            texts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(texts, padded)
        return [json.loads(t[: int(n)].cpu().numpy().tobytes()) for t, n in zip(texts, lengths, strict=True)]

    def gather(self, tensor: Tensor, what: str) -> list[Tensor]:
        """Each rank's tensor; equal shapes and dtypes."""
        if self.size == 1:
            return [tensor]
        mine = tensor.to(self._device)
        out = [torch.empty_like(mine) for _ in range(self.size)]
        with self._wait(what):
            dist.all_gather(out, mine)
        return [t.to(tensor.device) for t in out]

    def sum_gradients(self, parameters: Sequence[Tensor], what: str) -> None:
        """Sum every parameter's gradient over the ranks, in place. A gradient that this rank has not made counts as zero."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.size == 1:
            return
        for bucket in _buckets(parameters):
            gradients = [p.grad for p in bucket if p.grad is not None]
            flat = torch.cat([g.reshape(-1) for g in gradients])
            with self._wait(what):
                dist.all_reduce(flat, op=dist.ReduceOp.SUM)
            for gradient, summed in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
                gradient.copy_(summed.view_as(gradient))

    def close(self) -> None:
        """Leave the group; not collective, and harmless twice."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _wait(self, what: str) -> Iterator[None]:
        me = f"rank {self.rank} of {self.size}"
        try:
            yield
        except RuntimeError as error:  # torch's DistError and DistBackendError derive from it
            if "timed out" in str(error).lower() or "timeout" in str(error).lower():
                raise WaitTimeout(f"{what}: {me} waited {self._timeout_s:g} s for the others; look for the one that is stuck") from error
            raise EngineError(f"{what}: {me} lost another rank ({error}); the run can be resumed from its last checkpoint") from error


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive parameters of one dtype, at most BUCKET_BYTES together."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        new = parameter.numel() * parameter.element_size()
        if bucket and (size + new > BUCKET_BYTES or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += new
    if bucket:
        yield bucket
