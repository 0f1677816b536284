"""Bytes of columns as polynomials in the sizes of the graph; offsets of ragged columns and headers are not counted.

f32[512, S - 1]     2048*S - 2048
text[512]           512*text(answer)        text(answer): bytes of one such text in utf-8, on average
"""

from __future__ import annotations

from math import prod

from ..language.spec import DTYPES
from .ir import Dim, Spec


def is_text(letter: str) -> bool:
    """Whether a letter stands for the bytes of a text, and not for a size."""
    return letter.startswith("text(")


class ColumnBytes:
    """Bytes of all rows of a column. Each spec is worked out once: most fields of a graph share one of a few."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[Dim, ...], str], Dim] = {}

    def __call__(self, spec: Spec, name: str) -> Dim:
        """name: of the field; it matters for text only."""
        key = (spec.dtype, spec.shape, name if spec.dtype == "text" else "")
        if key not in self._known:
            width = DTYPES[spec.dtype].size
            self._known[key] = prod(spec.shape, start=Dim.letter(f"text({name})") if width is None else Dim.of(width))
        return self._known[key]


def row_bytes(spec: Spec) -> Dim | None:
    """Of one row at its own length, S its tokens; None for text, which is as long as it is."""
    width = DTYPES[spec.dtype].size
    return None if width is None else prod(spec.shape[1:], start=Dim.of(width))
