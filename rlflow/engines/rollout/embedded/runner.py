"""Prefill and decode on a transformers model, with the slab cache.

Attention is registered with transformers under the name "rlflow_slab":
    prefill (no mask)   causal over the new tokens; right padding needs no mask, since nothing attends to the right
    decode (S = 1)      the query heads that share a K/V head are taken as that head's queries, so K/V is not repeated, and
                        batched products over views of the slabs do it: for one query a row cheaper than a fused kernel

All shapes depend on a row alone (fixed_shapes.py): what a row gives does not depend on the rows that run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rlflow.engines.rollout.embedded.config import ServerConfig
from rlflow.engines.rollout.embedded.fixed_shapes import attend, filled_up, prefill_width, slab_length, tile_linears
from rlflow.engines.rollout.embedded.kv_cache import SlabCache
from rlflow.errors import EngineError

__all__ = ["ModelRunner", "load_model"]

ATTENTION = "rlflow_slab"
MODEL_TYPES = ("llama", "qwen2")


def load_model(path: Path) -> Any:
    """The causal model of a Hugging Face folder, in float32, on the CPU. Raises EngineError for what the slab cache cannot serve."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not (path / "config.json").is_file():
        raise EngineError(f"{path} is no model folder: it has no config.json")
    config = AutoConfig.from_pretrained(path)
    _check_config(config, path)
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, slab_attention)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.config._attn_implementation = ATTENTION  # not a kernel of transformers, so not through its loader's checks
    tile_linears(model)
    return model.eval().requires_grad_(False)


def _check_config(config: Any, path: Path) -> None:
    if config.model_type not in MODEL_TYPES:
        raise EngineError(f"{path}: model_type {config.model_type!r}; the embedded engine serves {', '.join(MODEL_TYPES)}")
    if getattr(config, "use_sliding_window", False):
        raise EngineError(f"{path}: use_sliding_window is set; the embedded engine serves full attention only")
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise EngineError(f"{path}: rope_type {rope!r} depends on the longest row of a batch; rows of a batch would disturb each other")


def slab_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None, **kwargs: Any
) -> tuple[Tensor, None]:
    """query [B, heads, S, D], key and value [B, kv_heads, L, D], decode's mask [B, 1, 1, L] (added) → [B, S, heads, D].

    In decode the query may have more rows than the rest: they fill up a tile, and their result is 0.
    """
    heads, dim = query.shape[1], query.shape[3]
    batch, kv_heads = key.shape[:2]
    if attention_mask is not None:
        shared = query[:batch].reshape(batch * kv_heads, heads // kv_heads, dim) * (dim**-0.5 if scaling is None else scaling)
        mask = attention_mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)
        seen = query.new_zeros(len(query), 1, heads, dim)
        seen[:batch] = attend(shared, key.flatten(0, 1), value.flatten(0, 1), mask).view(batch, 1, heads, dim)
        return seen, None
    key, value = key.repeat_interleave(heads // kv_heads, dim=1), value.repeat_interleave(heads // kv_heads, dim=1)
    out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


class ModelRunner:
    """Owns the model and its cache. Rows of the cache are the running batch's rows."""

    def __init__(self, config: ServerConfig) -> None:
        self.model = load_model(config.model_path)
        hf = self.model.config
        self.vocab_size: int = hf.vocab_size
        self.context_length: int = hf.max_position_embeddings
        self.cache = SlabCache(
            layers=hf.num_hidden_layers,
            kv_heads=hf.num_key_value_heads,
            head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
            dtype=torch.float32,
            max_slots=config.max_running_requests,
            max_tokens=config.max_total_tokens,
        )

    def prefill(
        self, prompts: Sequence[Sequence[int]], first_slot: int, with_logprobs: Sequence[bool]
    ) -> tuple[Tensor, list[list[float] | None]]:
        """Run whole prompts into the slots from `first_slot` on.

        Returns float32 logits [B, V] for the token after each prompt, and for rows with `with_logprobs` the log-probs (at
        temperature 1) of prompt tokens 1, 2, …
        """
        widths = np.array([prefill_width(len(prompt)) for prompt in prompts])
        logits, wanted = torch.empty(len(prompts), self.vocab_size), list[list[float] | None]([None] * len(prompts))
        for width in np.unique(widths).tolist():
            rows: list[int] = np.flatnonzero(widths == width).tolist()
            lengths, hidden = self._prefill([prompts[row] for row in rows], first_slot + torch.tensor(rows), width)
            logits[rows] = self.model.lm_head(hidden[torch.arange(len(rows)), lengths - 1])
            for row, states in zip(rows, hidden, strict=True):
                wanted[row] = self._prompt_logprobs(states, prompts[row]) if with_logprobs[row] else None
        return logits, wanted

    def _prefill(self, prompts: Sequence[Sequence[int]], slots: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Prompts of one width → their lengths [B], and the hidden states [B, width, hidden]."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        position = torch.arange(width).expand(len(prompts), width)
        self.cache.start_prefill(slots, position < lengths[:, None])
        return lengths, self._forward(ids, position, None)

    def decode(self, tokens: NDArray[np.int64], position: NDArray[np.int64]) -> Tensor:
        """One step for rows 0 … n-1: their newest token [n] at `position` [n] → float32 logits [n, V] for the next one."""
        at, rows = torch.from_numpy(position), len(position)
        used = slab_length(int(position.max()) + 1)
        mask = torch.zeros(rows, used).masked_fill_(torch.arange(used) > at[:, None], -torch.inf)[:, None, None, :]
        self.cache.start_decode(at, used)
        ids, where = torch.zeros(2, filled_up(rows), 1, dtype=torch.long)
        ids[:rows, 0], where[:rows, 0] = torch.from_numpy(tokens), at
        return self.model.lm_head(self._forward(ids, where, mask)[:, 0])[:rows]  # type: ignore[no-any-return]

    def _forward(self, ids: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        writes = self.cache.writes
        with torch.inference_mode():
            hidden: Tensor = self.model.model(
                input_ids=ids, attention_mask=mask, position_ids=position, cache=self.cache, use_cache=True
            ).last_hidden_state
        layers = self.model.config.num_hidden_layers
        assert self.cache.writes - writes == layers, "the model did not take the cache: another transformers names the argument otherwise"
        return hidden

    def _prompt_logprobs(self, hidden: Tensor, prompt: Sequence[int]) -> list[float]:
        logits = self.model.lm_head(hidden[: len(prompt) - 1])
        return logits.log_softmax(-1).gather(-1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()  # type: ignore[no-any-return]
