"""Which rows go where, as indices: computed on lengths and ids alone, never on tokens.

    8 rows          pad_index(8, multiple=4 * 3)                       0 1 2 3 4 5 6 7 -1 -2 -3 -4      -1 - i: pad row i
    then            rebalance_index(lengths, ..., mini_batches=3)      who is in mini-batch j: by group and seed. Inside it: balanced pieces
    then            shard_index(12, dp=2, mini_batches=3)              a contiguous slice of every mini-batch for each rank
    then            pack_index(lengths a rank)                         micro-batches under a budget of tokens, equally many on all ranks

`plan_rows` joins them: one RowPlan, four bytes a row, from which rank r takes `micros(r)`, [mini-batch][micro-batch] of indices into the
rows as they were before padding. The cut may change the speed, not the mathematics: who is in mini-batch j depends on no dp, pad or piece.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import msgspec
import numpy as np

from rlflow.errors import DataError

from .batch import PAD_TOKENS
from .dtypes import Array
from .packing import pack, split, spread


# --- pad ------------------------------------------------------------------------------------------------------------------------------
def pad_index(rows: int, *, multiple: int) -> Array:
    """int64[padded]: 0 .. rows - 1, then -1, -2, ... up to the next multiple. Pad row i is -1 - i, see Block.take. No rows stay none."""
    if multiple < 1:
        raise DataError(f"cannot pad to a multiple of {multiple}")
    pads = -rows % multiple
    return np.concatenate([np.arange(rows), -1 - np.arange(pads)])


# --- rebalance ------------------------------------------------------------------------------------------------------------------------
def rebalance_index(lengths: Array, is_pad: Array, uid: Array, *, pieces: int, mini_batches: int = 1, seed: int = 0) -> Array:
    """A permutation, int64[rows]: mini-batch by mini-batch, each in `pieces` contiguous pieces of nearly equal token sums.

    lengths int[rows] true tokens, is_pad bool[rows], uid int64[rows].
    Mini-batches: real rows, ordered by group (groups shuffled by seed, rows of a group in the order given), are cut in `mini_batches`
    chunks whose sizes differ by at most one; pads fill them up to rows / mini_batches each.
    Pieces: piece i of a mini-batch of m rows holds rows i * m // pieces up to (i + 1) * m // pieces: counts differ by at most one, and the
    contiguous slice of a rank is made of whole pieces whenever dp divides both `pieces` and m.
    Raises DataError when rows do not divide by mini_batches.
    """
    lengths, is_pad, uid, rows = np.asarray(lengths, np.int64), np.asarray(is_pad, np.bool_), np.asarray(uid, np.int64), len(lengths)
    if mini_batches < 1 or pieces < 1 or rows % mini_batches:
        raise DataError(f"cannot cut {rows} rows in {mini_batches} mini-batches of {pieces} pieces: pad to a multiple of them first")
    members = _mini_batches(is_pad, uid, mini_batches, seed)
    return np.concatenate([member[_balance(lengths[member], pieces)] for member in members])


def _mini_batches(is_pad: Array, uid: Array, count: int, seed: int) -> list[Array]:
    real, pads = np.flatnonzero(~is_pad), np.flatnonzero(is_pad)
    real = real[np.lexsort((uid[real], _shuffled(uid[real], seed)))]  # stable: rows of a group stay in order
    chunks = np.array_split(real, count)
    size, out, used = len(is_pad) // count, [], 0
    for chunk in chunks:
        fill = size - len(chunk)
        out.append(np.concatenate([chunk, pads[used : used + fill]]))
        used += fill
    return out


def _shuffled(uid: Array, seed: int) -> Array:
    """uint64[rows]: orders groups as a function of (uid, seed) alone. The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    golden = 0x9E3779B97F4A7C15
    x = uid.astype(np.int64).view(np.uint64) + np.uint64((seed + 1) * golden % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _balance(lengths: Array, pieces: int) -> Array:
    """An order whose contiguous pieces weigh the same, and whose larger slices do even more: cut in a few parts, then every part again.

    The numbers of parts are the prime factors of `pieces`, largest first, so that every dp with pieces = dp * 2**k is one of the levels. A
    row longer than a piece makes that piece heavy, but not the slice: the other pieces of its slice are lighter.
    """
    rows = len(lengths)
    border = [i * rows // pieces for i in range(pieces + 1)]
    groups, step, tokens = [np.argsort(-lengths, kind="stable").tolist()], pieces, lengths.tolist()
    for parts in _prime_factors(pieces):
        step //= parts
        room = [border[i + step] - border[i] for i in range(0, pieces, step)]
        dealt = (_deal(group, tokens, room[i * parts : (i + 1) * parts]) for i, group in enumerate(groups))
        groups = list(chain.from_iterable(dealt))
    return np.fromiter(chain.from_iterable(groups), np.int64, rows)


def _deal(group: list[int], tokens: list[int], room: list[int]) -> list[list[int]]:
    """Rows, longest first, each to the part with the fewest tokens that has room (LPT with counts)."""
    parts: list[list[int]] = [[] for _ in room]
    heap = [(0, i) for i, count in enumerate(room) if count]
    for row in group:
        total, i = heapq.heappop(heap)
        parts[i].append(row)
        if len(parts[i]) < room[i]:
            heapq.heappush(heap, (total + tokens[row], i))
    return parts


def _prime_factors(n: int) -> list[int]:
    """Largest first: 24 -> [3, 2, 2, 2]."""
    found, p = [], 2
    while n > 1:
        while n % p:
            p += 1
        found.append(p)
        n //= p
    return found[::-1]


# --- shard ----------------------------------------------------------------------------------------------------------------------------
def shard_index(rows: int, *, dp: int, mini_batches: int = 1) -> list[list[Array]]:
    """[rank][mini-batch] -> int64: a contiguous slice of every mini-batch for each rank. Raises DataError when rows do not divide."""
    if dp < 1 or mini_batches < 1 or rows % (dp * mini_batches):
        product = dp * mini_batches
        raise DataError(f"{rows} rows do not divide by dp {dp} x {mini_batches} mini-batches: pad to a multiple of {product} first")
    cells = np.arange(rows).reshape(mini_batches, dp, -1) if rows else np.zeros((mini_batches, dp, 0), np.int64)
    return [[cells[j, r] for j in range(mini_batches)] for r in range(dp)]


# --- micro-batches --------------------------------------------------------------------------------------------------------------------
def pack_index(lengths_per_rank: Sequence[Sequence[Array]], *, max_tokens: int, padded: bool = True) -> list[list[list[Array]]]:
    """[rank][mini-batch][micro-batch] -> int64 indices into that rank's rows of the mini-batch.

    lengths_per_rank: [rank][mini-batch] -> int[rows]. Cost of a micro-batch: rows x longest (padded) or the sum of lengths, <= max_tokens;
    a row that alone costs more is a micro-batch of its own (`over_budget` names it). All ranks run equally many in each mini-batch, or a
    collective would hang: a rank that needs fewer cuts further, so that its own weigh alike. None is ever empty. Costliest first, so that a
    lack of memory shows at once.
    Raises DataError when a rank has fewer rows than another needs micro-batches (cannot happen where shard_index made the slices).
    """
    if max_tokens < 1:
        raise DataError(f"a budget of {max_tokens} tokens holds no row")
    minis = {len(rank) for rank in lengths_per_rank}
    if len(minis) > 1:
        raise DataError(f"ranks have different numbers of mini-batches: {sorted(minis)}")
    out: list[list[list[Array]]] = [[] for _ in lengths_per_rank]
    for j in range(minis.pop() if minis else 0):
        columns = [np.asarray(rank[j], np.int64) for rank in lengths_per_rank]
        packed = [pack(lengths, max_tokens, padded) for lengths in columns]
        count = max(map(len, packed))
        for r, lengths in enumerate(columns):
            if len(lengths) < count:
                raise DataError(f"rank {r} has {len(lengths)} rows in mini-batch {j}, another needs {count} micro-batches: shard equally")
            micros = spread(lengths, max_tokens, count) if padded else packed[r]
            out[r].append(split(micros, lengths, count, padded))
    return out


def over_budget(lengths: Array, *, max_tokens: int) -> Array:
    """int64: the rows that alone are longer than the budget."""
    return np.flatnonzero(np.asarray(lengths) > max_tokens)


# --- all of it ------------------------------------------------------------------------------------------------------------------------
class RowPlan(msgspec.Struct, frozen=True):
    """Pad, rebalance, shard and micro-pack as one permutation: four bytes a row and a few numbers."""

    rows: int  # real ones, as they were before padding
    padded: int
    dp: int
    mini_batches: int
    index: bytes  # int32[padded], rank by rank, mini-batch by mini-batch, micro-batch by micro-batch; -1 - i is pad row i
    sizes: tuple[tuple[tuple[int, ...], ...], ...]  # [rank][mini-batch] -> rows of each micro-batch
    over_budget: tuple[int, ...]  # rows that alone exceed the budget: each is a micro-batch of its own

    def micros(self, rank: int) -> list[list[Array]]:
        """[mini-batch][micro-batch] -> int64 indices into the rows before padding, for Block.take."""
        flat = self.rows_of(rank)
        cuts = [0, *accumulate(size for mini in self.sizes[rank] for size in mini)]
        spans = iter(pairwise(cuts))
        return [[flat[slice(*next(spans))] for _ in mini] for mini in self.sizes[rank]]

    def rows_of(self, rank: int) -> Array:
        """int64[padded / dp]: all rows of a rank, in the order it trains them."""
        if not 0 <= rank < self.dp:
            raise DataError(f"rank {rank} of a plan for dp {self.dp}")
        share = self.padded // self.dp
        return np.frombuffer(self.index, np.int32, share, rank * share * 4).astype(np.int64)


def plan_rows(
    lengths: Array,
    uid: Array,
    *,
    multiple: int,
    pieces: int,
    dp: int,
    max_tokens: int,
    is_pad: Array | None = None,
    mini_batches: int = 1,
    seed: int = 0,
    padded: bool = True,
) -> RowPlan:
    """The four steps on rows of `lengths` int[rows] and `uid` int64[rows] (is_pad: rows that are pads already)."""
    source = pad_index(len(lengths), multiple=multiple)
    pads = source[len(lengths) :]
    flags = np.zeros(len(lengths), np.bool_) if is_pad is None else np.asarray(is_pad, np.bool_)
    tokens = np.append(np.asarray(lengths, np.int64), [PAD_TOKENS] * len(pads))
    order = rebalance_index(tokens, np.append(flags, pads < 0), np.append(uid, pads), pieces=pieces, mini_batches=mini_batches, seed=seed)
    cells = [[order[cell] for cell in rank] for rank in shard_index(len(order), dp=dp, mini_batches=mini_batches)]
    packed = pack_index([[tokens[cell] for cell in rank] for rank in cells], max_tokens=max_tokens, padded=padded)
    joined = zip(chain.from_iterable(cells), chain.from_iterable(packed), strict=True)
    final = [cell[micro] for cell, mini in joined for micro in mini]
    return RowPlan(
        rows=len(lengths),
        padded=len(source),
        dp=dp,
        mini_batches=mini_batches,
        index=b"".join(source[rows].astype("<i4").tobytes() for rows in final),
        sizes=tuple(tuple(tuple(map(len, mini)) for mini in rank) for rank in packed),
        over_budget=tuple(over_budget(lengths, max_tokens=max_tokens).tolist()),
    )
