"""Counts of each mini-batch over all ranks, known before its first micro-batch.

this rank's rows ── tokens, rows (, keys of trajectories, groups) ──▶ exchange ──▶ over all ranks ─┐
the plan's counts, Objective.counts[j], where it gives them ───────────────────────────────────────┴──▶ divisor of each loss
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlflow.errors import EngineError
from rlflow.language.denominator import KEYS, WEIGHED
from rlflow.language.loss import RowWeight

from .distributed import Ranks
from .protocol import LossLike, ObjectiveLike, RowsLike
from .shares import Shares, local_trees

__all__ = ["Counts", "counted", "divisor", "local_counts", "row_weight", "whole_counts"]


@dataclass(frozen=True)
class Counts:
    """Of one mini-batch over all ranks. shares: where a loss weighs rows."""

    numbers: Mapping[str, int]
    shares: Shares | None = None

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


def local_counts(minibatch: Sequence[RowsLike]) -> dict[str, int]:
    """tokens: trained positions of real rows. rows: those with such a position. Pads, and rows whose mask is all False, count nowhere."""
    trained = [micro.response_mask.bool() & ~micro.is_pad.bool().unsqueeze(-1) for micro in minibatch]
    return {"tokens": sum(int(mask.sum()) for mask in trained), "rows": sum(int(mask.any(-1).sum()) for mask in trained)}


def row_weight(loss: LossLike) -> RowWeight:
    """Of a loss; `row` for one that does not say. Raises EngineError for a word that is none."""
    found: Any = getattr(loss, "row_weight", "row")
    if found not in WEIGHED:
        raise EngineError(f"{type(loss).__name__}.row_weight is {found!r}; use {', '.join(WEIGHED)}")
    return found  # type: ignore[no-any-return]


def whole_counts(objective: ObjectiveLike, losses: Collection[LossLike], ranks: Ranks) -> list[Counts]:
    """The counts of every mini-batch over all ranks. Collective.

    trajectories and groups only if a loss divides by them: from `Objective.counts` if it says, else by the rows' own keys (a trajectory
    whose leaves lie on two ranks counts once). Raises EngineError, on every rank, if the ranks hold different numbers of mini-batches
    (some would wait for ever).
    """
    planned = tuple(objective.counts or ()) or ({},) * len(objective.parts)
    asked = sorted({counted for loss in losses if isinstance(counted := loss.denominator, str) and KEYS.get(counted)})
    weighed = any(row_weight(loss) != "row" for loss in losses)
    words = [_word(part, asked, plan, weighed) for part, plan in zip(objective.parts, planned, strict=False)]
    told = ranks.exchange({"parts": words, "plans": len(planned), "size": len(objective.parts)}, "the counts of the mini-batches")
    _refuse_unequal(told)
    return [_together([word["parts"][j] for word in told], planned[j], asked) for j in range(len(objective.parts))]


def _word(minibatch: Sequence[RowsLike], asked: Sequence[str], planned: Mapping[str, int], weighed: bool) -> dict[str, Any]:
    trees = {"trees": local_trees(minibatch)} if weighed else {}
    return {**local_counts(minibatch), **{name: _keys(minibatch, name) for name in asked if name not in planned}, **trees}


def _keys(minibatch: Sequence[RowsLike], name: str) -> list[list[int]]:
    """The distinct keys among the rows of this rank with a trained token."""
    keys: set[tuple[int, ...]] = set()
    for micro in minibatch:
        lacking = [column for column in KEYS[name] if not hasattr(micro, column)]
        if lacking:
            raise EngineError(
                f"a loss divides by {name}, but the rows have no {' and '.join(lacking)} to count them by: "
                f"let the record carry {' and '.join(KEYS[name])}, or give Objective.counts"
            )
        counted = micro.response_mask.bool().any(-1) & ~micro.is_pad.bool()
        keys |= set(zip(*(getattr(micro, column)[counted].tolist() for column in KEYS[name]), strict=True))
    return [list(key) for key in sorted(keys)]


def _together(words: Sequence[Mapping[str, Any]], planned: Mapping[str, int], asked: Sequence[str]) -> Counts:
    whole = {name: sum(int(word[name]) for word in words) for name in ("tokens", "rows")}
    for name in asked:
        whole[name] = int(planned[name]) if name in planned else len({tuple(key) for word in words for key in word[name]})
    return Counts(whole, Shares(tree for word in words for tree in word["trees"]) if "trees" in words[0] else None)


def _refuse_unequal(told: Sequence[Mapping[str, Any]]) -> None:
    sizes = [word["size"] for word in told]
    if len(set(sizes)) > 1:
        raise EngineError(f"ranks hold different numbers of mini-batches ({sizes}): each makes one optimizer step together, so cut alike")
    plans = [word["plans"] for word in told]
    if plans != sizes:
        raise EngineError(f"Objective.counts has {plans} entries (a rank each) for {sizes[0]} mini-batches; give one each, or none")


def divisor(loss: LossLike, counts: Counts) -> float:
    """What the sum of a loss's terms is divided by; 1 where nothing counts (then its terms are zero).

    Raises EngineError for a denominator that nobody counts, or a number that is not above 0.
    """
    found = counted(loss, counts)
    return found if found > 0 else 1.0


def counted(loss: LossLike, counts: Counts) -> float:
    """The denominator of a loss in a mini-batch: of rows and tokens, as the loss weighs them. Raises as `divisor`."""
    denominator: Any = loss.denominator
    name = type(loss).__name__
    if isinstance(denominator, str):
        if denominator not in counts.numbers:
            raise EngineError(f"{name}.denominator is {denominator!r}; use tokens, rows, trajectories, groups or a number")
        if (by := row_weight(loss)) != "row" and denominator in ("rows", "tokens"):
            assert counts.shares is not None
            return counts.shares.total(denominator, by)
        return float(counts[denominator])
    if isinstance(denominator, bool) or not isinstance(denominator, int | float) or not denominator > 0:
        raise EngineError(f"{name}.denominator is {denominator!r}; a constant denominator is a number above 0")
    return float(denominator)
