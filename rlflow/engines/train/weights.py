"""Parameters out, under the names and in the shapes of the Hugging Face checkpoint: what `save_pretrained` would write.

A tied `lm_head.weight` is not among them (the checkpoint holds the embedding only, and its reader ties again); buffers that
the checkpoint does not hold (rotary frequencies) are not either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from rlflow.errors import EngineError

__all__ = ["checkpoint_tensors", "in_buckets"]


def checkpoint_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor): detached, contiguous, on the model's device. Most alias the live parameters: read them before the next step."""
    state = remove_tied_weights_from_state_dict(model.state_dict(), model)
    for name, tensor in sorted(revert_weight_conversion(model, state).items()):
        yield name, tensor.detach().contiguous()


def in_buckets(named: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Whole tensors, in their order, at most `max_bytes` a bucket; a larger tensor has a bucket of its own."""
    if max_bytes <= 0:
        raise EngineError(f"max_bytes is {max_bytes}; a bucket holds at least one tensor, give a size in bytes above 0")
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, tensor in named:
        new = tensor.numel() * tensor.element_size()
        if bucket and size + new > max_bytes:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = tensor
        size += new
    if bucket:
        yield bucket
