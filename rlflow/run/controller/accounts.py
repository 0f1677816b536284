"""The accounts of finished groups: sums of what was kept and dropped since the start, and what was learned of the rows of the data."""

from __future__ import annotations

from .order import prompt_of
from .passrates import Word
from .state import Group, State
from .tally import Tally, judged, taken_out

__all__ = ["cover", "filtered", "kept", "lost", "undo"]


def kept(state: State, group: Group, version: int, passed: tuple[int, int] = (0, 0)) -> None:
    """It is trained, into this version. passed: tries and passes, where the batch scope judged it."""
    state.totals.kept.add(_sum_up(group, passed if passed[0] else judged(group)))
    _finish(state, group, version)


def lost(state: State, group: Group, reason: str) -> None:
    """It is dropped; what was judged of it by then counts."""
    state.totals.lose(reason, _sum_up(group, judged(group)))
    _finish(state, group, state.published)


def undo(state: State, group: Group) -> None:
    """A rollback takes it back: it was neither trained nor dropped."""
    assert group.tally is not None
    if group.state == "trained":
        state.totals.kept.add(group.tally, times=-1)
        state.totals.trained_rows -= group.trained_rows
    else:
        state.totals.lose(group.reason, group.tally, times=-1)
    state.totals.take_out(group.taken_out or {}, times=-1)


def cover(state: State, at_most: int | None = None) -> None:
    """Batches below the newest checkpoint, and what was dropped up to its version, stay as they are for good.

    Some of them in each transition, the oldest first: a large batch would hold all others up. What a kill leaves a resume covers.
    """
    left = len(state.uncovered) if at_most is None else at_most
    while left and state.uncovered and state.uncovered[0].version <= state.saved:
        group = state.uncovered.popleft()
        state.uncovered_rows -= group.rows
        state.covered.append(group.uid)
        left -= 1
    whole = min(state.saved, state.uncovered[0].version - 1) if state.uncovered else state.saved
    while state.uncovered_batches and state.uncovered_batches[0].id.batch < whole:
        state.journal_batch(state.uncovered_batches.popleft(), "covered")


def filtered(state: State, uid: int) -> str:
    """Why the row of this prompt is not sampled any more; "" if it is."""
    return state.pass_rates.refuses(_row(state, uid)) if state.pass_rates.words else ""


def _sum_up(group: Group, passed: tuple[int, int]) -> Tally:
    group.tally, group.judged = Tally.of(group, *passed), passed
    return group.tally


def _finish(state: State, group: Group, version: int) -> None:
    """What filters took out of it is counted by them; how often the row of the data was answered right is told of all of its answers."""
    assert group.tally is not None
    out = taken_out([trajectory.row() for trajectory in group.trajectories if trajectory.state == "dropped"])
    group.taken_out = out or None
    state.totals.take_out(out)
    tries, passes = group.tally.tries, group.tally.passes
    for tally in out.values():
        tries, passes = tries + tally.tries, passes + tally.passes
    if tries and state.rows and state.pass_rates.bounds is not None:
        state.journal += state.pass_rates.tell(_row(state, group.uid), Word(version, tries, passes), state.saved)


def _row(state: State, uid: int) -> int:
    return prompt_of(uid, state.rows, state.config.seed)[1]
