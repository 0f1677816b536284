"""Row operators: any record in, the same record on other rows out. In the order in which they stand:

    pad            so many rows that they divide by dp x mini-batches
    rebalance      the same rows, reordered: contiguous slices weigh the same
    shard          the contiguous slices of one data-parallel rank, one a mini-batch
    micro_pack     micro-batches under a budget of tokens

In a run the plan calls `index=` alone, on lengths and uids, for all four at once (`rlflow.data.rowplan.plan_rows`), and a worker fetches
its rows by index. Here, outside a run, the same functions act on right-padded tensors [B, ...] and lists of text.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rlflow import Micro, Record, RowsT, Worker, operator
from rlflow.data import tensors
from rlflow.data.rowplan import pack_index, pad_index, rebalance_index, shard_index
from rlflow.errors import DataError

from .fields import RankCount, TokenCount

if TYPE_CHECKING:
    from rlflow.data.dtypes import Array
    from rlflow.data.tensors import Fields


@operator(per="batch", rows="pad", index=pad_index)
def pad(rows: RowsT, *, multiple: int) -> RowsT:
    """Add pad rows until their count is a multiple of `multiple`: [B, ...] -> [B', ...].

    All ranks must get equally many rows in every mini-batch, and the number of leaf rows is known only at run time. A pad row holds every
    field of the record: zeros, masks False, text "", is_pad True, and a uid and traj_uid of its own (negative): no loss counts it, no group
    has it as a member.

    Example: 6 rows, multiple=4 -> 8 rows, the last two with is_pad True.
    """
    fields = _fields(rows)
    return take(rows, pad_index(tensors.rows_of(fields), multiple=multiple))


@operator(per="batch", rows="permute", index=rebalance_index)
def rebalance(rows: RowsT, *, pieces: RankCount, mini_batches: int = 1) -> RowsT:
    """Reorder rows so that contiguous slices hold nearly equally many true tokens: [B, ...] -> [B, ...].

    Who is in mini-batch j is decided first, by group and seed (a run gives each batch its own, here it is 0); rows move inside their
    mini-batch only. There they are dealt to `pieces` pieces of equal row count, longest first, each to the lightest. `pieces` is a multiple
    of dp (say 4 x dp): the slice that a rank gets later is made of several pieces which are balanced already, and the slowest rank, which
    sets the time of a step, is hardly slower than the others.
    Raises DataError when the rows do not divide by mini_batches, or when mini_batches > 1 and the record has no uid.
    """
    fields = _fields(rows)
    if mini_batches > 1 and "uid" not in fields:
        raise DataError(f"{type(rows).__name__} has no uid: groups decide who is in which of {mini_batches} mini-batches")
    lengths, is_pad, uid = tensors.lengths(fields), tensors.is_pad(fields), tensors.groups(fields)
    return take(rows, rebalance_index(lengths, is_pad, uid, pieces=pieces, mini_batches=mini_batches))


@operator(per="batch", rows="shard", index=shard_index)
def shard(rows: RowsT, *, on: Worker, mini_batches: int = 1) -> RowsT:
    """The rows of one data-parallel rank of `on`: [B, ...] -> [B / dp, ...], its slice of every mini-batch, one after the other.

    Outside a run they are those of `on.site.rank`, or of rank 0 where the worker is not open. Only dp cuts rows: the tensor, pipeline and
    context parallel ranks behind one dp rank all need the same ones. Raises DataError when B does not divide by dp x mini_batches.
    """
    fields, site = _fields(rows), getattr(on, "site", None)
    rank, lengths = 0 if site is None else site.rank, tensors.lengths(fields)
    cells = shard_index(len(lengths), dp=on.dp_size, mini_batches=mini_batches)
    taken = take(rows, np.concatenate(cells[rank]))
    object.__setattr__(taken, "_cut", _Cut(rank, [[lengths[cell] for cell in minis] for minis in cells]))
    return taken


@operator(per="row", rows="pack", index=pack_index)
def micro_pack(rows: RowsT, *, max_tokens: TokenCount) -> Micro[RowsT]:
    """Micro-batches of at most `max_tokens` right-padded tokens (rows x longest): `Micro.parts` is [mini-batch][micro-batch] of records.

    Counts of rows differ between micro-batches, their token counts are alike, and together they are the mini-batch. All ranks get equally
    many (`shard` saw how long the rows of the others are), or a collective would hang. A row longer than the budget is a micro-batch of its
    own. Rows that `shard` did not make are those of one rank, in one mini-batch.
    """
    cut: _Cut = getattr(rows, "_cut", None) or _Cut(0, [[tensors.lengths(_fields(rows))]])
    packed, start, parts = pack_index(cut.lengths, max_tokens=max_tokens)[cut.rank], 0, []
    for lengths, micros in zip(cut.lengths[cut.rank], packed, strict=True):
        parts.append(tuple(take(rows, start + micro) for micro in micros))
        start += len(lengths)
    return Micro(rows=rows, parts=tuple(parts))


@dataclasses.dataclass(frozen=True)
class _Cut:
    """What `shard` knows and the rows of one rank do not show: where mini-batches end, and the lengths on the other ranks."""

    rank: int
    lengths: list[list[Array]]  # [rank][mini-batch] -> int64[rows]


def _fields(rows: Record) -> Fields:
    """The fields that have a value: tensors and lists of text. (One that this variant does not make, or nobody reads, is not there.)"""
    import torch

    return {name: value for name, value in vars(rows).items() if isinstance(value, torch.Tensor | list)}


def take(rows: RowsT, index: Array) -> RowsT:
    """The same record on other rows; -1 - i makes pad row i."""
    out = object.__new__(type(rows))
    for field in dataclasses.fields(rows):  # type: ignore[arg-type]
        if field.name in vars(rows):
            object.__setattr__(out, field.name, vars(rows)[field.name])
    for name, value in tensors.take(_fields(rows), index).items():
        object.__setattr__(out, name, value)
    return out
