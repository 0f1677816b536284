"""Keys and values of the running rows in two slabs a layer, [slots, kv_heads, length, head_dim].

    prefill   attention over the new tokens only; their K/V go to (slot, 0 … len-1)
    decode    one new K/V a row at (slot, length-1); attention over slots [:n], positions [:longest used]

Running rows always are slots 0 … n-1, so decode reads views of the slabs and copies nothing. The slabs grow with demand, slots by
doubling and the length as decode reads it (`slab_length`), not beyond `max_tokens` slots × length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rlflow.engines.rollout.embedded.fixed_shapes import slab_length

__all__ = ["SlabCache"]


class SlabCache(Cache):
    """The cache object handed to the transformers model. Set where to write with `start_*`, then call the model."""

    def __init__(self, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, max_slots: int, max_tokens: int) -> None:
        super().__init__(layers=[])
        self._layers, self._kv_heads, self._head_dim, self._dtype = layers, kv_heads, head_dim, dtype
        self._max_slots, self._max_tokens = max_slots, max_tokens
        self.slots = self.length = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._flat = torch.empty(0, dtype=torch.long)  # where each (token, kv head) goes, in a slab seen as [-1, head_dim]
        self._source: Tensor | slice = slice(0)  # which of the batch × width tokens are real
        self._seen: tuple[slice, slice, slice] | None = None  # decode: the part of the slabs that is read
        self.writes = 0

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self._keys, *self._values))

    def free(self) -> None:
        """Give the memory back; whatever was cached is lost."""
        self._keys, self._values, self.slots, self.length = [], [], 0, 0

    def reserve(self, slots: int, length: int, *, keep: int) -> None:
        """Make room for `slots` rows of `length` tokens, keeping what the first `keep` rows hold."""
        if slots <= self.slots and length <= self.length:
            return
        new_length = slab_length(max(length, self.length))
        new_slots = self._grown(max(slots, self.slots), new_length)
        for slabs in (self._keys, self._values):
            # zeros, not empty: attention multiplies masked positions by 0, and 0 × NaN is NaN
            shape = (new_slots, self._kv_heads, new_length, self._head_dim)
            for layer in range(self._layers):
                new = torch.zeros(shape, dtype=self._dtype)
                if layer < len(slabs):
                    new[:keep, :, : self.length] = slabs[layer][:keep]
                    slabs[layer] = new
                else:
                    slabs.append(new)
        self.slots, self.length = new_slots, new_length

    def _grown(self, slots: int, length: int) -> int:
        """Slots rounded up against frequent regrowth, as far as the token budget allows."""
        roomy = min(self._max_slots, 1 << (slots - 1).bit_length())
        return roomy if roomy * length <= self._max_tokens else slots

    def move(self, source: Tensor, target: Tensor, used: int) -> None:
        """Copy rows `source` [M] onto rows `target` [M], positions [:used]."""
        for slab in (*self._keys, *self._values):
            slab[target, :, :used] = slab[source, :, :used]

    def clear(self, rows: Tensor) -> None:
        for slab in (*self._keys, *self._values):
            slab[rows] = 0

    def start_prefill(self, slots: Tensor, real: Tensor) -> None:
        """The next forward brings right-padded rows for `slots` [B]; `real` [B, S] bool marks their tokens."""
        row, position = real.nonzero(as_tuple=True)
        self._source, self._seen = row * real.shape[1] + position, None
        self._flat = self._places(slots[row], position)

    def start_decode(self, position: Tensor, used: int) -> None:
        """The next forward brings one token a row for slots 0 … n-1 at `position` [n]; rows read positions [:used].

        It may bring rows behind them, which fill up a tile: nothing of them is kept.
        """
        rows = position.shape[0]
        self._source, self._seen = slice(rows), (slice(rows), slice(None), slice(used))
        self._flat = self._places(torch.arange(rows), position)

    def _places(self, slot: Tensor, position: Tensor) -> Tensor:
        """[N] slots and positions → [N × kv_heads] indices of vectors in a slab."""
        head = torch.arange(self._kv_heads)
        return ((slot[:, None] * self._kv_heads + head) * self.length + position[:, None]).flatten()

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Called by each attention layer with [B, kv_heads, S, head_dim]; returns what to attend to, in the same layout."""
        self.writes += 1
        for slab, states in ((self._keys[layer_idx], key_states), (self._values[layer_idx], value_states)):
            tokens = states.transpose(1, 2).reshape(-1, self._kv_heads, self._head_dim)[self._source]
            slab.view(-1, self._head_dim).index_copy_(0, self._flat, tokens.reshape(-1, self._head_dim))
        if self._seen is None:
            return key_states, value_states
        return self._keys[layer_idx][self._seen], self._values[layer_idx][self._seen]
