"""Counts since the run began, for metrics: what a crash must not change comes back out of the ledger, the rest begins anew."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .tally import Tally

__all__ = ["Totals"]


@dataclass(slots=True)
class Totals:
    kept: Tally = field(default_factory=Tally)
    """What was trained, and by reason what was dropped: where they differ, dropping biases. A resume goes on with all three."""
    lost: dict[str, Tally] = field(default_factory=dict)
    taken_out: dict[str, Tally] = field(default_factory=dict)
    """By filter, the trajectories that it took out of groups, once these are trained or dropped."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Events of an old timeline, attempt or start, by type: they changed nothing."""
    failed_attempts: int = 0
    failed_syncs: int = 0
    failed_saves: int = 0
    engine_deaths: int = 0
    rollbacks: int = 0
    trained_rows: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Gap -> sampled tokens, over all batches formed."""

    @property
    def dropped(self) -> Counter[str]:
        """Groups by reason."""
        return Counter({reason: tally.groups for reason, tally in self.lost.items()})

    def lose(self, reason: str, tally: Tally, times: int = 1) -> None:
        """times -1: it is taken back."""
        _add(self.lost, reason, tally, times)

    def take_out(self, tallies: dict[str, Tally], times: int = 1) -> None:
        """By filter. times -1: it is taken back."""
        for by, tally in tallies.items():
            _add(self.taken_out, by, tally, times)


def _add(sums: dict[str, Tally], key: str, tally: Tally, times: int) -> None:
    """Sums of nothing are not kept."""
    total = sums.setdefault(key, Tally())
    total.add(tally, times)
    if total == Tally():
        del sums[key]
