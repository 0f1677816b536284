"""What is left at a checkpoint: the rules by which a rollback and a resume begin a new timeline.

    weights of version c ──→ batches < c: trained, for good      batches ≥ c: undone
                             groups with tag ≤ c: kept, with those of their trajectories that landed with all spans ≤ c
                             groups with tag > c, or without a seat: pending
                             drops and scores made at versions > c: undone

Trained and dropped groups that the checkpoint does not cover are among these groups, as if they had never been consumed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .journal import BatchRow, EvaluationRow, Pending
from .rollout import is_scored
from .schedule import Config
from .state import Group, State, Trajectory

__all__ = ["Records", "rewind", "what_is_kept", "without_seat"]


@dataclass(frozen=True, kw_only=True)
class Records:
    """Of the timelines before, in memory or in the ledger: all that the newest checkpoint does not cover."""

    groups: Sequence[Group]
    """Live, trained and dropped ones."""
    batches: Sequence[BatchRow]
    evaluations: Sequence[EvaluationRow]
    hops: tuple[str, ...]
    """Operators before boarding that were run on the groups, in order."""
    least_left: int = 0
    """The fewest trajectories that they left of a group; 0: all."""


def rewind(state: State, records: Records, checkpoint: int) -> None:
    """Begin the next timeline at this version. Expects the uids that were pending before in ``state.pending``."""
    evaluated = state.covered_evaluation
    state.drawn = max(state.drawn, state.next_uid)
    state.begin(state.timeline + 1, checkpoint)
    state.covered_evaluation = evaluated
    state.journal += state.pass_rates.undo(checkpoint)
    _put_back(state, records)
    _undo_batches(state, records)
    state.journal_timeline()
    _make_evaluations_due(state, records)
    state.evaluated = max([state.covered_evaluation, *(row.version for row in state.scored)])


def what_is_kept(group: Group, *, checkpoint: int, attempt: int, same_hops: bool) -> Group | None:
    """The group as it was at the checkpoint; None: it was not there, its rows belong to a timeline that died.

    A trajectory keeps its rows if no token of it is of a later version, and starts again as ``attempt`` otherwise. What operators made of
    the group stays if all its trajectories do, and they are the operators of now; which of them its filters left is part of that.
    """
    if group.tag > checkpoint:
        return None
    trajectories = [_kept_or_fresh(trajectory, checkpoint, attempt, same_hops) for trajectory in group.trajectories]
    landed = sum(trajectory.state != "queued" for trajectory in trajectories)
    is_whole = landed == len(trajectories)
    hops_done = group.hops_done if is_whole and same_hops else 0
    for trajectory in trajectories if not hops_done else ():
        _take_back(trajectory)
    judged = group.judged if hops_done else (0, 0)
    return Group(group.uid, group.tag, trajectories, "landed" if is_whole else "running", landed, hops_done=hops_done, judged=judged)


def without_seat(groups: Iterable[Group], *, checkpoint: int, max_lag: int, groups_per_batch: int) -> set[int]:
    """Uids of those that cannot board in time: for every k = -1 … L the batches up to c + k have (k + 1) · P seats.

    Too many for them: running before ready, latest first, go. Only a smaller P or L makes any.
    """
    left = sorted(groups, key=lambda group: (group.tag, group.uid))
    gone: set[int] = set()
    for k in range(-1, max_lag + 1):
        due = [group for group in left if group.uid not in gone and group.tag + max_lag <= checkpoint + k]
        excess = len(due) - (k + 1) * groups_per_batch
        gone.update(group.uid for group in sorted(due, key=_goes_first)[: max(excess, 0)])
    return gone


def _goes_first(group: Group) -> tuple[int, int, int]:
    return ("running", "landed", "ready").index(group.state), -group.tag, -group.uid


def _kept_or_fresh(trajectory: Trajectory, checkpoint: int, attempt: int, same_hops: bool) -> Trajectory:
    if trajectory.state not in ("landed", "dropped") or any(span.version > checkpoint for span in trajectory.spans):
        return Trajectory(trajectory.uid, trajectory.traj_uid, attempt)
    return Trajectory(
        trajectory.uid, trajectory.traj_uid, trajectory.attempt, state=trajectory.state, engine=trajectory.engine,
        version_tag=trajectory.version_tag, spans=trajectory.spans, rows=trajectory.rows,
        hops_done=trajectory.hops_done if same_hops else 0, judged=trajectory.judged, reason=trajectory.reason,
    )  # fmt: skip


def _take_back(trajectory: Trajectory) -> None:
    """The filters of its group run again."""
    if trajectory.state == "dropped":
        trajectory.state, trajectory.reason = "landed", ""


def _put_back(state: State, records: Records) -> None:
    """The groups that are kept are live again, the others pending."""
    config = state.config
    same_hops = (records.hops, records.least_left) == (tuple(hop.operator for hop in config.hops), config.least_left)
    kept: list[Group] = []
    for group in records.groups:
        found = what_is_kept(group, checkpoint=state.published, attempt=state.attempt_floor, same_hops=same_hops)
        if found is not None:
            _settle_state(config, found)
            kept.append(found)
    homeless = without_seat(kept, checkpoint=state.published, max_lag=config.max_lag, groups_per_batch=config.groups_per_batch)
    kept = sorted((group for group in kept if group.uid not in homeless), key=lambda group: group.uid)
    _make_pending(state, {group.uid for group in records.groups} - {group.uid for group in kept})
    for group in kept:
        _make_live(state, group)


def _settle_state(config: Config, group: Group) -> None:
    group.scored = sum(is_scored(config, trajectory) for trajectory in group.trajectories)
    if group.scored == config.n and group.hops_done == len(config.group_hops):
        group.state = "ready"


def _make_pending(state: State, uids: set[int]) -> None:
    """They can be drawn again; what lies at the top of all uids is as if it never was."""
    if uids:
        state.journal.append(Pending(tuple(sorted(uids))))
        state.abandoned.extend(sorted(uids))
    state.pending = sorted({*state.pending, *uids})
    while state.pending and state.pending[-1] == state.next_uid - 1:
        state.next_uid = state.pending.pop()


def _make_live(state: State, group: Group) -> None:
    state.groups[group.uid] = group
    state.buffer.register(group)
    if group.state == "ready":
        state.buffer.make_ready(group)
    state.touch(group)
    for trajectory in group.trajectories:
        state.touch(trajectory)
        if trajectory.state == "queued":
            heapq.heappush(state.queued, (group.tag, group.uid, trajectory.traj_uid))


def _undo_batches(state: State, records: Records) -> None:
    for row in records.batches:
        state.journal.append(BatchRow(row.timeline, row.batch, "covered" if row.batch < state.published else "undone", row.groups))


def _make_evaluations_due(state: State, records: Records) -> None:
    """Unfinished ones and those scored above the checkpoint are void; of these the ones that were due by then are due again."""
    for row in sorted(records.evaluations, key=lambda row: row.due):
        if row.state == "scored" and row.version <= state.published:
            state.scored.append(row)
        elif row.due <= state.published:
            state.evaluations_due.append(row.due)
            state.journal_evaluation(row.due, "due")
        else:
            state.journal_evaluation(row.due, "undone")
