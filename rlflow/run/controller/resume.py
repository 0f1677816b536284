"""A state out of the ledger: the run goes on from its newest checkpoint, on a new timeline.

Books ──newest saved version c──→ Records ──rewind──→ State at c, whose journal says what the resume changed

n is that of before; P, L, last, engines, hops and all other options may be others. The position in the data is derived: the next prompt is
the first that is neither finished nor live.
"""

from __future__ import annotations

from copy import deepcopy

from ...errors import UsageError
from .books import Books
from .evaluation import cover_scored
from .journal import GroupRow, TimelineRow, TrajectoryRow
from .schedule import Config, Origin
from .state import Group, State, Trajectory
from .tally import Tally, taken_out
from .timelines import Records, rewind

__all__ = ["forget_rows", "resume"]


def resume(config: Config, books: Books) -> State:
    """The state to begin with: of a new run if the books are empty. Commit its ``journal`` before the first event, ``RunStarted``.

    Raises UsageError if n is not what the groups of the run have.
    """
    if not books.timelines:
        return State(config)
    newest = books.timelines[max(books.timelines)]
    if newest.n != config.n:
        raise UsageError(f"n={config.n}: the groups of this run have n={newest.n} trajectories each; resume it with n={newest.n}")
    state = _state_of(config, books, newest)
    checkpoint = _checkpoint(books)
    records = Records(
        groups=[_group(row, books, config.n) for row in books.groups.values() if not _is_covered(row, checkpoint)],
        batches=list(books.batches.values()),
        evaluations=list(books.evaluations.values()),
        hops=newest.hops,
        least_left=newest.least_left,
    )
    covered = [row for row in books.groups.values() if _is_covered(row, checkpoint)]
    _count(state, books, covered)
    rewind(state, records, checkpoint)
    cover_scored(state)
    state.covered.extend(row.uid for row in covered)
    state.write_journal()
    state.abandoned.extend(row.uid for row in covered)
    return state


def forget_rows(books: Books) -> None:
    """Those of groups that no checkpoint covers: they are sampled again. Of the others it is counted what was made of them."""
    checkpoint = _checkpoint(books)
    for uid, group in books.groups.items():
        if not _is_covered(group, checkpoint):
            books.trajectories.pop(uid, None)


def _checkpoint(books: Books) -> int:
    return books.saved.version if books.saved else min(row.version for row in books.timelines.values())


def _state_of(config: Config, books: Books, newest: TimelineRow) -> State:
    """Counters, and which uids are pending: all below the highest that are neither finished nor known as a group."""
    counters = books.counters
    assert counters is not None, "a timeline is committed with its counters"
    state = State(config, Origin(timeline=newest.timeline, version=newest.version, uid=counters.first_uid))
    state.is_resumed = True
    state.checkpoint = books.saved.version if books.saved else None
    state.highest_attempt = counters.highest_attempt
    state.covered_evaluation = counters.evaluated
    state.source_end, state.drawn = counters.source_end, counters.drawn
    state.next_uid = max([counters.first_uid, books.finished.stop, *(uid + 1 for uid in books.groups)])
    state.pass_rates.load(books.pass_rates.values())
    state.pending = [uid for uid in books.finished.gaps(counters.first_uid, state.next_uid) if uid not in books.groups]
    return state


def _count(state: State, books: Books, covered: list[GroupRow]) -> None:
    """What is finished for good."""
    state.totals.kept, state.totals.lost, state.totals.taken_out = deepcopy((books.kept, books.lost, books.taken_out))
    for row in covered:
        if row.state == "trained":
            state.totals.kept.add(Tally.of_row(row))
        else:
            state.totals.lose(row.reason, Tally.of_row(row))
        state.totals.take_out(taken_out(books.trajectories.get(row.uid, {}).values()))


def _is_covered(row: GroupRow, checkpoint: int) -> bool:
    return row.state in ("trained", "dropped") and row.version <= checkpoint


def _group(row: GroupRow, books: Books, n: int) -> Group:
    """A trajectory without a row was never sent."""
    rows = books.trajectories.get(row.uid, {})
    trajectories = [_trajectory(rows[i]) if i in rows else Trajectory(row.uid, i, 0) for i in range(n)]
    return Group(row.uid, row.tag, trajectories, row.state, hops_done=row.hops_done, judged=(row.tries, row.passes))


def _trajectory(row: TrajectoryRow) -> Trajectory:
    return Trajectory(
        row.uid, row.traj_uid, row.attempt, state=row.state, engine=row.engine, version_tag=row.version_tag, spans=row.spans,
        rows=row.rows, hops_done=row.hops_done, judged=(row.tries, row.passes),
        reason=row.reason,
    )  # fmt: skip
