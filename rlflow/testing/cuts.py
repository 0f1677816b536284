"""P17: no cut of a mini-batch changes a loss's gradient.

    the mini-batch whole: one micro-batch, one rank, right-padded ──────────────────────────▶ gradient g of all forward outputs
    ─ cut ─▶ ranks (dp) ─▶ micro-batches ─▶ padded or packed ─▶ slices of positions (cp) ──▶ Σ of gradients, back in place: g'

‖g' - g‖ / ‖g‖ is at most 1e-12 in float64 and 1e-6 in float32. Each difference alone first (so that an error can say which one it is), then
all of them together. Ranks of dp run one after the other; those of cp are threads, since a loss may reduce over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch

from rlflow.errors import UsageError
from rlflow.language.loss import Loss

from .cutting import Harness
from .drawn import PADS, REAL, draw
from .given import refuse_no_loss

__all__ = ["Cut", "assert_split_invariant"]

LIMITS = {torch.float64: 1e-12, torch.float32: 1e-6}
MASK_FIRST = (
    ". Mask what you read before you compute with it, `x.where(rows.response_mask, 0)`: "
    "a term that is masked afterwards has a gradient of 0 · NaN = NaN"
)
SHUFFLED = (5, 2, 7, 0, 3, 6, 1, 4)
PADDED = (8, 5, 2, 7, 9, 10, 0, 3, 6, 1, 4, 11)  # padding rows anywhere, and one rank of four may hold two


@dataclass(frozen=True)
class Cut:
    """One way to cut the rows. As it stands: not at all."""

    micro: int = 0  # rows of a micro-batch; 0: all of the rank
    dp: int = 1
    cp: int = 1
    packed: bool = False
    shuffled: bool = False
    pads: bool = False
    junk: str = ""  # outside the mask: "", "numbers", "nan", or "mixed", a row each

    def rows(self) -> tuple[int, ...]:
        if self.shuffled:
            return PADDED if self.pads else SHUFFLED
        return (*REAL, *PADS) if self.pads else tuple(REAL)

    def micro_batches(self) -> list[list[tuple[int, ...]]]:
        """[dp rank][micro-batch] → rows. Slices are contiguous."""
        rows = self.rows()
        share = len(rows) // self.dp
        size = self.micro or share
        return [[rows[i : min(i + size, end)] for i in range(end - share, end, size)] for end in range(share, len(rows) + 1, share)]

    def __str__(self) -> str:
        said = [
            f"micro-batches of {self.micro} rows" if self.micro > 1 else "micro-batches of 1 row" if self.micro else "",
            f"dp {self.dp}" if self.dp > 1 else "",
            f"cp {self.cp}" if self.cp > 1 else "",
            "packed" if self.packed else "",
            "rows in another order" if self.shuffled else "",
            f"{len(PADS)} padding rows" if self.pads else "",
            {"": "", "numbers": "large numbers outside response_mask", "nan": "NaN outside response_mask",
             "mixed": "junk outside response_mask"}[self.junk],
        ]  # fmt: skip
        return ", ".join(filter(None, said)) or "no cut"


def assert_split_invariant(loss: Loss[Any, Any], *, seed: int = 0) -> None:
    """Raise AssertionError if a cut of the mini-batch changes the gradient of `loss` (P17): a property of every loss that says so.

    Micro-batches of {1, 2, 3, all} rows x dp {1, 2, 4} x cp {1, 2} x padded or packed x the order of rows x padding rows, and what lies
    outside the mask, on drawn rows with trees, tool gaps and a row without a trained token (see drawn.py; seed: of their numbers), in
    float64 (‖Δg‖/‖g‖ ≤ 1e-12), and every fifth of these cuts in float32 (≤ 1e-6). About a second.
    The error names the worst cut, by how much it is off, and which differences do it alone.

    Raises UsageError for a loss with split_invariant = False, which promises nothing, or one that is not active.

        class mean_of_what_is_here(Aggregated[PolicyForward, PpoRows]):
            def __call__(self, forward, rows):
                return self.aggregated(forward.log_probs * rows.advantages.mean(), rows)      # of the micro-batch: refused
    """
    refuse_no_loss(loss)
    name = type(loss).__name__
    if not loss.split_invariant:
        said = f": {loss.depends_on_cut}" if loss.depends_on_cut else ""
        raise UsageError(f"{name} says split_invariant = False{said}; there is nothing to assert")
    if not loss.active:
        raise UsageError(f"{name} is not active with these options: it reads nothing and trains nothing")
    with Harness(loss, draw(loss, seed=seed)) as harness:
        for dtype, cuts in ((torch.float64, [*_together()]), (torch.float32, [*_together()][::5])):
            _compare(harness, name, dtype, cuts)


def _compare(harness: Harness, name: str, dtype: torch.dtype, cuts: list[Cut]) -> None:
    kind, limit = str(dtype).removeprefix("torch."), LIMITS[dtype]
    try:
        whole = harness.gradient(Cut(), dtype)
    except Exception as error:
        raise AssertionError(f"{name} fails in {kind} on rows that are not cut at all: {error}") from error
    scale = sum(float(g.square().sum()) for g in whole.values()) ** 0.5
    if not scale > 0:
        raise AssertionError(f"{name} has no gradient on the drawn rows: nothing can be compared")

    def off(cut: Cut) -> Off:
        try:
            found = harness.gradient(cut, dtype)
        except Exception as error:
            return Off(float("inf"), f"it fails, and not without: {error}")
        difference = sum(float((found[key] - whole[key]).square().sum()) for key in whole) ** 0.5 / scale
        return Off(difference if difference == difference else float("inf"))  # NaN is no agreement

    alone = {cut: off(cut) for cut in _alone()}
    wrong = {cut: one for cut, one in alone.items() if one.by > limit}
    together = {} if wrong else {cut: off(cut) for cut in cuts}
    worst, how = max({**alone, **together}.items(), key=lambda item: (item[1].by, item[1].failure))
    if how.by > limit:
        by_itself = [f"{cut} ({'it fails' if one.failure else f'{one.by:.1e}'})" for cut, one in wrong.items()]
        raise AssertionError(
            f"{name} is not split-invariant: in {kind} with {worst} "
            + (how.failure or f"‖Δg‖/‖g‖ is {how.by:.2e}, at most {limit:g} is rounding")
            + (f". By itself this does it: {'; '.join(by_itself)}" if by_itself else ". No one difference does it by itself")
            + (MASK_FIRST if wrong and all(cut.junk for cut in wrong) else "")
        )


class Off(NamedTuple):
    """How far a gradient is from the whole one's, relative; why there is none."""

    by: float
    failure: str = ""


def _alone() -> Iterator[Cut]:
    """One difference each."""
    for micro in (1, 2, 3):
        yield Cut(micro=micro)
    for dp in (2, 4):
        yield Cut(dp=dp)
    yield from (Cut(cp=2), Cut(packed=True), Cut(shuffled=True), Cut(pads=True), Cut(junk="numbers"), Cut(junk="nan"))


def _together() -> Iterator[Cut]:
    """Every combination, with junk of all kinds outside the mask."""
    flags = (False, True)
    for micro, dp, cp, packed, shuffled, pads in product((1, 2, 3, 0), (1, 2, 4), (1, 2), flags, flags, flags):
        yield Cut(micro, dp, cp, packed, shuffled, pads, "mixed")
