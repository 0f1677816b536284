"""Pass rates: how often a prompt of the data was answered right when it was last judged, and which prompts are sampled no more.

    Trained(passed), a judged group that is dropped ──→ word on a row (tries, passes, version) ──→ rate outside [low, high]: not sampled

The newest word on a row counts. Words from versions above c are undone by a resume from the checkpoint c, so an older word is kept until a
checkpoint holds a newer one: a row has one word, and one more for each epoch since the last checkpoint.

Example, [0.1, 0.9]: 4 of 4 right at version 3, 2 of 4 at version 7. It is sampled; after a resume from version 5 it is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .journal import PassRate

__all__ = ["PassRates", "Word"]


class Word(NamedTuple):
    """What was last heard of a row, by the version published then."""

    version: int
    tries: int
    passes: int

    @property
    def rate(self) -> float:
        return self.passes / self.tries


@dataclass(slots=True)
class PassRates:
    """Of the rows of the data, by row. ``O(1)`` a word; nothing is kept without bounds."""

    bounds: tuple[float, float] | None
    words: dict[int, tuple[Word, ...]] = field(default_factory=dict)
    """The newest last."""
    outside: int = 0
    """Rows that are not sampled."""

    def tell(self, row: int, word: Word, saved: int) -> list[PassRate]:
        """A group of this row was judged. saved: version of the newest checkpoint. Returns what is to be kept, and forgotten."""
        if self.bounds is None or word.tries < 1:
            return []
        before = self.words.get(row, ())
        if before and before[-1].version == word.version:  # the data is smaller than a batch
            word = Word(word.version, before[-1].tries + word.tries, before[-1].passes + word.passes)
        kept = tuple(one for one in before if one.version != word.version)
        covered = sum(one.version <= saved for one in kept)
        needless, kept = kept[: max(covered - 1, 0)], kept[max(covered - 1, 0) :]
        self._set(row, (*kept, word))
        return [*(_forgotten(row, one) for one in needless), PassRate(row, word.tries, word.passes, word.version)]

    def refuses(self, row: int) -> str:
        """Why this row is not sampled; "" if it is."""
        words = self.words.get(row)
        if not words or self.bounds is None or self._is_inside(words[-1]):
            return ""
        low, high = self.bounds
        return f"{words[-1].passes} of {words[-1].tries} were right at version {words[-1].version}, outside [{low:g}, {high:g}]"

    def undo(self, version: int) -> list[PassRate]:
        """Forget words from versions above this one. Returns what is to be forgotten."""
        gone: list[PassRate] = []
        for row, words in list(self.words.items()):
            if words[-1].version > version:
                gone += [_forgotten(row, one) for one in words if one.version > version]
                self._set(row, tuple(one for one in words if one.version <= version))
        return gone

    def load(self, kept: Iterable[PassRate]) -> None:
        """What a ledger holds, in any order; also without bounds, so that a resume undoes what it must."""
        words: dict[int, list[Word]] = {}
        for one in kept:
            words.setdefault(one.row, []).append(Word(one.version, one.tries, one.passes))
        for row, of_row in words.items():
            self._set(row, tuple(sorted(of_row)))

    def _set(self, row: int, words: tuple[Word, ...]) -> None:
        before = self.words.pop(row, ())
        self.outside += _counts(words and not self._is_inside(words[-1])) - _counts(before and not self._is_inside(before[-1]))
        if words:
            self.words[row] = words

    def _is_inside(self, word: Word) -> bool:
        return self.bounds is None or self.bounds[0] <= word.rate <= self.bounds[1]


def _counts(is_outside: object) -> int:
    return 1 if is_outside else 0


def _forgotten(row: int, word: Word) -> PassRate:
    return PassRate(row, 0, 0, word.version)
