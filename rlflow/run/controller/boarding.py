"""Who boards: forming a batch is preceded by a dry run, so that no waiting group is pushed over ``max_lag``.

    ready ──(P with the earliest deadlines, if what stays behind can still make it)──→ queued ──→ training
                                     if it cannot
    wait     for those that run
    drop     those that are too many, running before ready, latest first
    mask     board all the same: tokens older than max_lag are masked; a group of which nothing is left is dropped
    correct  board all the same: tokens are weighed

"Nothing left behind is due now" is not enough: it may leave more groups due in one later batch than that batch has seats.
Example: P = 2, L = 1, b = 3: ready {A tag 3, B tag 3}, running {C tag 2}. C's deadline is 3; left behind it counts 1 > 0 · P: wait.
When C lands, {C, A} board.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .events import Train
from .rollout import drop
from .state import Batch, Group, State, Trajectory

__all__ = ["board", "drop_remainder", "first_violation", "gaps"]


def board(state: State) -> None:
    """Form and start all the batches that may be formed and started now."""
    _start_training(state)
    while _queue_takes_one(state) and (uids := _who_boards(state)):
        _form(state, uids)
        _start_training(state)
    drop_remainder(state)
    _note_piled(state)


def first_violation(
    waiting: Mapping[int, int], ready: Mapping[int, int], *, next_batch: int, groups_per_batch: int, max_lag: int
) -> int | None:
    """The dry run: the smallest k for which the groups left behind with a deadline ≤ b + k would number more than k · P; None: board.

    waiting, ready: groups by tag (the ready ones are among the waiting). Deadline = tag + max_lag. The P ready ones with the earliest
    deadlines are picked.
    """
    left = dict(waiting)
    seats = groups_per_batch
    for tag in sorted(ready):
        picked = min(ready[tag], seats)
        left[tag] -= picked
        seats -= picked
    tags = sorted(left)
    due = position = 0
    for k in range(max_lag + 1):
        while position < len(tags) and tags[position] + max_lag <= next_batch + k:
            due += left[tags[position]]
            position += 1
        if due > k * groups_per_batch:
            return k
    return None


def drop_remainder(state: State) -> None:
    """The source has ended, fewer than P wait, and the option says that no short batch is wanted."""
    if state.config.remainder == "drop" and _is_remainder(state):
        detail = f"the source has ended with fewer than {state.config.groups_per_batch} groups waiting"
        for uid in list(state.buffer.uids()):
            drop(state, state.groups[uid], "remainder", detail)


def _queue_takes_one(state: State) -> bool:
    """One batch beyond the queue may be formed when the trainer is idle: it does not stay in the queue."""
    if state.stops or state.next_batch > state.config.last:
        return False
    return len(state.batches) < state.config.queue or (state.training is None and not state.batches)


def _who_boards(state: State) -> list[int]:
    _drop_stale(state)
    config = state.config
    if _is_remainder(state):
        is_whole = config.remainder == "short" and state.ready == state.waiting
        return state.buffer.earliest_ready(state.ready) if is_whole else []
    while state.ready >= config.groups_per_batch:
        k = first_violation(
            state.buffer.waiting_counts(),
            state.buffer.ready_counts(),
            next_batch=state.next_batch,
            groups_per_batch=config.groups_per_batch,
            max_lag=config.max_lag,
        )
        if k is None:
            return state.buffer.earliest_ready(config.groups_per_batch)
        if _drop_oversampled(state, k):
            continue
        if config.policy == "wait":
            return []
        if config.policy != "drop":
            return state.buffer.earliest_ready(config.groups_per_batch)
        _drop_late(state, k)
    return []


def _is_remainder(state: State) -> bool:
    return state.source_exhausted and 0 < state.waiting < state.config.groups_per_batch


def _drop_oversampled(state: State, k: int) -> bool:
    """Of the groups due by b + k (the picked ones included) drop those beyond (k + 1) · P: running first, latest first."""
    config = state.config
    if not config.oversample:
        return False
    due = [state.groups[uid] for uid in state.buffer.uids(newest_tag=state.next_batch + k - config.max_lag)]
    excess = len(due) - (k + 1) * config.groups_per_batch
    for group in sorted(due, key=_droppable_first)[: max(excess, 0)]:
        drop(state, group, "oversampled", f"more groups are due by batch {state.next_batch + k} than the batches up to it have seats")
    return excess > 0


def _drop_late(state: State, k: int) -> None:
    """Of the groups left behind that are due by b + k drop those beyond k · P: running first, latest first."""
    config, batch = state.config, state.next_batch
    picked = set(state.buffer.earliest_ready(config.groups_per_batch))
    due = [state.groups[uid] for uid in state.buffer.uids(newest_tag=batch + k - config.max_lag) if uid not in picked]
    for group in sorted(due, key=_droppable_first)[: len(due) - k * config.groups_per_batch]:
        by = f"due by batch {group.tag + config.max_lag}, and {config.groups_per_batch} groups are ready to be batch {batch} without it"
        drop(state, group, "stale", by)


def _drop_stale(state: State) -> None:
    """Under *mask*: of the ready groups those of which the next batch could train no token. The oldest are looked at first."""
    config, oldest = state.config, state.next_batch - state.config.max_lag
    if config.policy != "mask":
        return
    for uid in [uid for tag in sorted(state.buffer.ready) if tag < oldest for uid in sorted(state.buffer.ready[tag])]:
        newest = _newest_version(state.groups[uid])
        if newest < oldest:
            drop(
                state,
                state.groups[uid],
                "stale",
                f"its newest token is of version {newest}, batch {state.next_batch} trains those from {oldest} on",
            )


def _newest_version(group: Group) -> int:
    """That sampled a token of it; its tag if nobody tells who did."""
    return max((span.version for trajectory in group.left for span in trajectory.spans), default=group.tag)


def _note_piled(state: State) -> None:
    """A whole batch is ready and does not board."""
    if state.ready >= state.config.groups_per_batch and state.next_batch <= state.config.last and not state.stops:
        refused = "a batch is ready, but older groups would be pushed over max_lag"
        state.watermark.piled = refused if _queue_takes_one(state) else "a batch is ready beyond what the queue takes"


def _droppable_first(group: Group) -> tuple[int, int, int]:
    return ("running", "landed", "ready", "consumed").index(group.state), -group.tag, -group.uid


def _form(state: State, uids: Iterable[int]) -> None:
    """Rows of a batch are ordered (uid, traj_uid, leaf). What a filter took out of a group is not among them."""
    groups = [state.groups[uid] for uid in sorted(uids)]
    trajectories = [trajectory for group in groups for trajectory in group.left]
    staleness = gaps(trajectories, state.next_batch)
    for group in groups:
        state.buffer.leave(group)
        group.state, group.batch = "consumed", state.next_batch
        state.touch(group)
    batch = Batch(
        id=state.batch_id(state.next_batch),
        groups=tuple(group.uid for group in groups),
        trajectories=tuple(trajectory.id for trajectory in trajectories),
        rows=sum(trajectory.rows for trajectory in trajectories),
        staleness=dict(sorted(staleness.items())),
    )
    state.batches.append(batch)
    state.journal_batch(batch, "queued")
    state.next_batch += 1
    state.totals.staleness.update(staleness)


def gaps(trajectories: Iterable[Trajectory], batch: int) -> Counter[int]:
    """Sampled tokens by gap: versions between the one that sampled them and the one that the batch trains."""
    found: dict[int, int] = {}
    for trajectory in trajectories:
        for span in trajectory.spans:
            gap = batch - span.version
            found[gap] = found.get(gap, 0) + span.end - span.start
    return Counter(found)


def _start_training(state: State) -> None:
    """One batch at a time."""
    if state.training is None and state.batches and not state.stops:
        state.training = batch = state.batches.popleft()
        state.journal_batch(batch, "training")
        state.emit(Train(batch.id, batch.groups, batch.trajectories))
        state.arm("train step", batch.id)
