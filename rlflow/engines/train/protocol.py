"""What a train engine promises. `TorchEngine` is one; Megatron fills the same.

    parts[j][i]   mini-batch j, micro-batch i, of this rank     one optimizer step a mini-batch

            terms [b, R] ── sum ──▶ / count(mini-batch j, ALL ranks) ──▶ backward ──▶ SUM over ranks ──▶ clip ──▶ AdamW
            a loss returns              the engine divides, once             never a mean

**Who divides.** The engine, once, by the count of the loss's denominator over the whole mini-batch on all ranks, known before the
first micro-batch. A loss never divides by a count over rows. Gradients are *summed* over micro-batches and ranks (dp and cp), so neither
the number of micro-batches nor `dp_size` nor `cp_size` is a factor of anything. Hence dp, cp, micro-batch size, packing, padding and the
order of rows inside a mini-batch do not change the gradient.

**Schedules that divide too.** What `micro_loss` returns is a share, and the shares of a mini-batch add up to its loss. An engine whose
schedule or reduction takes means multiplies the factor back, on the share, before it is differentiated:

    what divides                                                         by                        the share is multiplied by
    forward_backward of Megatron: loss / num_microbatches                num_microbatches          num_microbatches (of this rank)
    DDP and FSDP, Megatron's finalize: gradients averaged over dp x cp   dp_size * cp_size         dp_size * cp_size
    a loss_func that hands Megatron (sum, num_tokens) instead            Σ num_tokens, dp and cp   Σ num_tokens; better, hand it a scalar
    nothing (this engine)                                                1                         1

So under Megatron's default the share is multiplied by num_microbatches * dp_size * cp_size. Ranks that run different numbers of
micro-batches each use their own number. A term a row, [b], is whole on every cp rank and counts 1 / cp_size on each: see view.py.

**Denominators.** tokens: positions with `response_mask` in rows that are not padding. rows: rows with such a position. (A completion that
is masked as a whole, because it was cut off, say, trains nothing and must not dilute the mean of the others.) trajectories, groups: the
distinct (uid, traj_uid), uid of such rows, or `Objective.counts[j]` where the plan counted. A number: itself, whatever the batch.

**Row weights.** A loss with `row_weight` other than "row" has its terms weighed by what a row is of its trajectory or group in the whole
mini-batch, and its rows and tokens counted as weighed: see shares.py. The rows then carry uid and traj_uid.

**Statistics.** A loss with a `first_pass` is given one over the whole mini-batch, without gradient, before its terms: see statistics.py.

**Padding rows** (`is_pad`) count nowhere and their terms are dropped, and so is the term a row, [b], of a row without a trained token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossLike", "ObjectiveLike", "RowsLike", "TrainEngine"]


class RowsLike(Protocol):
    """Rows that a training forward reads (records have more fields: what their losses read). Right-padded, or packed: see packed.py."""

    @property
    def input_ids(self) -> Tensor: ...  # i64[b, S]
    @property
    def position_ids(self) -> Tensor: ...  # i64[b, S]
    @property
    def response_mask(self) -> Tensor: ...  # flag[b, R], R = S - 1
    @property
    def is_pad(self) -> Tensor: ...  # flag[b]


class LossLike(Protocol):
    """`__call__` returns masked terms, one a token or [b] a row, and never divides by a count over rows.

    Tokens lie as `response_mask` does, [b, R], or [1, N] where an engine packs. Terms a token are 0 outside it:
    `terms.where(rows.response_mask, 0)`; the engine refuses others. [b] terms are made by `rows.row_sum` and `rows.row_mean`, which mask
    and are right in every layout: the engine cannot see what a sum is made of.
    It may have `row_weight`: "row" | "trajectory" | "group", and `first_pass` with `statistic` (see above).
    It may have `from_forward`: {field of the rows: field of the forward}, for rows that lack the field (see filled.py).
    It may have `metrics(forward, rows) -> dict[str, Tensor]`: masked terms [b, R], reported as a mean over tokens.
    """

    @property
    def denominator(self) -> str | float: ...
    @property
    def active(self) -> bool: ...
    def __call__(self, forward: Any, rows: Any) -> Tensor: ...


class ObjectiveLike(Protocol):
    @property
    def losses(self) -> Sequence[Any]: ...
    @property
    def parts(self) -> Sequence[Sequence[Any]]: ...  # of RowsLike
    @property
    def counts(self) -> Sequence[Mapping[str, int]]: ...  # a mini-batch each: {"groups": 8}; () if the plan counts nothing


class TrainEngine(Protocol):
    """One data-parallel rank. `train`, `save`, `restore` and `close` are collective: every rank calls them, in the same order."""

    @property
    def version(self) -> int:
        """k of the weights held: 0 as loaded, + 1 a call of `train`."""
        ...

    def log_probs(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """f32[B, R]: at t, the log-probability (nats, at the engine's temperature) of token t + 1; zero where there is none."""
        ...

    def values(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """f32[B, R]: at t, the critic's value of the state after token t, i.e. before token t + 1; zero where there is no token t + 1."""
        ...

    def train(self, objective: ObjectiveLike, *, updates: int = 1) -> dict[str, float]:
        """One optimizer step a mini-batch, `updates` times over the batch; version + 1. Metrics: equal on all ranks and for every cut."""
        ...

    def load(self, path: Path, *, version: int = 0) -> None:
        """Take the weights of a Hugging Face checkpoint; the optimizer starts anew."""
        ...

    def save(self, path: Path) -> None:
        """Write a checkpoint that transformers can load and `restore` continues from to the bit; it appears in one rename."""
        ...

    def restore(self, path: Path) -> None:
        """Continue from what `save` wrote."""
        ...

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Weights under the names and in the shapes of the Hugging Face checkpoint, tied ones once; live until the next call of `train`."""
        ...

    def buckets(self, max_bytes: int) -> Iterator[dict[str, Tensor]]:
        """`named_tensors` in whole tensors, at most `max_bytes` together (a larger tensor travels alone)."""
        ...

    def close(self) -> None:
        """Leave the group of ranks."""
        ...
