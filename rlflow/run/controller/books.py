"""Tables of what outlives a crash, in memory: the model of the ledger. ``Books.apply(journal)`` is what a ledger does with a transaction.

groups, trajectories    live ones, and those that no checkpoint covers yet
finished, totals        the others: as intervals of uids, and as counts
batches, evaluations    those without a last word
timelines, saved        where each began; the newest durable checkpoint
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from .intervals import IntervalSet
from .journal import (
    BatchRow,
    Change,
    Counters,
    EvaluationRow,
    Finished,
    GroupRow,
    PassRate,
    Pending,
    SavedRow,
    TimelineRow,
    TrajectoryRow,
)
from .tally import Tally, taken_out

__all__ = ["Books"]

K = TypeVar("K")
R = TypeVar("R", BatchRow, EvaluationRow)


@dataclass
class Books:
    """What ``resume`` goes by. A ledger's ``load()`` gives the same."""

    groups: dict[int, GroupRow] = field(default_factory=dict)
    trajectories: dict[int, dict[int, TrajectoryRow]] = field(default_factory=dict)
    """uid -> traj_uid -> row."""
    finished: IntervalSet = field(default_factory=IntervalSet)
    kept: Tally = field(default_factory=Tally)
    """Sums over the finished ones that were trained."""
    lost: dict[str, Tally] = field(default_factory=dict)
    """Sums over the finished ones that were dropped, by reason."""
    taken_out: dict[str, Tally] = field(default_factory=dict)
    """Sums over what filters took out of finished ones, by filter."""
    batches: dict[tuple[int, int], BatchRow] = field(default_factory=dict)
    evaluations: dict[int, EvaluationRow] = field(default_factory=dict)
    timelines: dict[int, TimelineRow] = field(default_factory=dict)
    saved: SavedRow | None = None
    pass_rates: dict[tuple[int, int], PassRate] = field(default_factory=dict)
    """(row, version) -> row."""
    counters: Counters | None = None

    def apply(self, changes: Iterable[Change]) -> None:
        """One transaction, in order."""
        for change in changes:
            match change:
                case TrajectoryRow():
                    self.trajectories.setdefault(change.uid, {})[change.traj_uid] = change
                case GroupRow():
                    self.groups[change.uid] = change
                case BatchRow():
                    _put(self.batches, (change.timeline, change.batch), change)
                case EvaluationRow():
                    _put(self.evaluations, change.due, change)
                case TimelineRow():
                    self.timelines[change.timeline] = change
                case SavedRow():
                    self.saved = change
                case PassRate(row, 0, _, version):
                    self.pass_rates.pop((row, version), None)
                case PassRate():
                    self.pass_rates[change.row, change.version] = change
                case Counters():
                    self.counters = change
                case Pending():
                    self._delete(change.uids)
                case Finished():
                    self._finish(change.uids)

    def _finish(self, uids: Iterable[int]) -> None:
        for uid in uids:
            for by, tally in taken_out(self.trajectories.get(uid, {}).values()).items():
                self.taken_out.setdefault(by, Tally()).add(tally)
        for group in self._delete(uids):
            assert self.finished.add(group.uid), f"prompt {group.uid} is finished twice"
            sums = self.kept if group.state == "trained" else self.lost.setdefault(group.reason, Tally())
            sums.add(Tally.of_row(group))

    def _delete(self, uids: Iterable[int]) -> list[GroupRow]:
        gone = [self.groups.pop(uid) for uid in uids]
        for group in gone:
            self.trajectories.pop(group.uid, None)
        return gone


def _put(table: dict[K, R], key: K, row: R) -> None:
    if row.state in ("covered", "undone"):
        table.pop(key, None)
    else:
        table[key] = row
