"""From a running trajectory to a ready group, or to a dropped one.

Landed ──→ operators per trajectory, at once ──→ all n? operators per group ──→ ready
Failed ──→ attempt + 1 ──→ too many? the group is dropped whole, never shipped short
Ran(drop) ──→ the group is dropped; its seat is refilled by admission
Ran(left) ──→ those of its trajectories that a filter does not leave are dropped; the group goes on with the others
"""

from __future__ import annotations

import heapq

from .accounts import lost
from .events import Abort, Drop, Failed, Landed, Ran, Run, Warn
from .ids import GroupId, TrajectoryId, Unit
from .schedule import Config
from .state import Group, State, Trajectory

__all__ = [
    "abort", "drop", "engine_failed", "failed", "give_up", "guard_against_dropping_all", "is_scored", "landed", "live_trajectory", "ran",
    "reject", "rows_pile_up", "run_hops", "set_aside",
]  # fmt: skip


def landed(state: State, event: Landed) -> bool:
    """The rows are stored: score them now, without waiting for siblings."""
    trajectory = live_trajectory(state, event.trajectory)
    if trajectory is None or trajectory.state != "running":
        return False
    group = state.groups[trajectory.uid]
    if fault := _broken_contract(state, trajectory, event):
        abort(state, trajectory, fault)
        return True
    take_off(state, trajectory)
    trajectory.state, trajectory.spans, trajectory.rows, trajectory.judged = "landed", event.spans, event.rows, event.judged
    state.touch(trajectory)
    group.landed += 1
    if group.landed == state.config.n:
        group.state = "landed"
        state.touch(group)
    _score(state, group, trajectory)
    return True


def failed(state: State, event: Failed) -> bool:
    trajectory = live_trajectory(state, event.trajectory)
    if trajectory is None or trajectory.state != "running":
        return False
    trajectory.losses += event.lost
    attempt_failed(state, trajectory, event.why)
    return True


def ran(state: State, event: Ran) -> bool:
    """An operator before boarding returned: the next one, or the group is dropped."""
    group = _asked(state, event.operator, event.unit)
    if group is None:
        return False
    state.disarm("operator", event.unit, event.operator)
    _note_judged(group, event)
    if event.verdict == "drop":
        drop(state, group, event.operator, event.why)
    elif isinstance(event.unit, TrajectoryId):
        trajectory = group.trajectories[event.unit.traj_uid]
        trajectory.hops_done += 1
        state.touch(trajectory)
        _score(state, group, trajectory)
    else:
        group.hops_done += 1
        state.touch(group)
        _drop_others(state, group, event)
        _pass_group(state, group)
    return True


def _drop_others(state: State, group: Group, event: Ran) -> None:
    """A filter takes the group apart: what it does not leave keeps its rows in their files, for a rollback."""
    for trajectory in group.left if event.left else ():
        if trajectory.traj_uid not in event.left:
            trajectory.state, trajectory.reason = "dropped", event.operator
            state.touch(trajectory)


def _note_judged(group: Group, event: Ran) -> None:
    if event.judged[0] and isinstance(event.unit, TrajectoryId):
        group.trajectories[event.unit.traj_uid].judged = event.judged
    elif event.judged[0]:
        group.judged = event.judged


def reject(state: State, operator: str, unit: Unit, why: str) -> None:
    """The operator gave no verdict on this unit in time."""
    if group := _asked(state, operator, unit):
        drop(state, group, operator, why)


def abort(state: State, trajectory: Trajectory, why: str) -> None:
    """We give up on this running attempt, whatever it still does or has left behind."""
    state.emit(Abort(trajectory.id))
    attempt_failed(state, trajectory, why)


def engine_failed(state: State, trajectory: Trajectory, why: str) -> None:
    """The engine that ran it is gone."""
    trajectory.losses += 1
    abort(state, trajectory, why)


def attempt_failed(state: State, trajectory: Trajectory, why: str) -> None:
    """A running attempt is over without rows: once more, up to the bounds; then the group goes whole."""
    take_off(state, trajectory)
    state.totals.failed_attempts += 1
    group, most = state.groups[trajectory.uid], state.config.max_attempts
    failures = trajectory.tries - trajectory.losses
    if failures < most and trajectory.losses < most:
        queue_again(state, group, trajectory)
        return
    trajectory.state = "queued"
    if failures < most:
        drop(state, group, "engine", f"under trajectory {trajectory.id} engines went down {trajectory.losses} times, the last time: {why}")
    else:
        drop(state, group, "attempts", f"trajectory {trajectory.id} failed {failures} times, the last time: {why}")


def queue_again(state: State, group: Group, trajectory: Trajectory) -> None:
    """A new attempt, all fields reset; the group keeps its tag."""
    fresh = Trajectory(group.uid, trajectory.traj_uid, trajectory.attempt + 1, trajectory.tries, trajectory.losses)
    group.trajectories[trajectory.traj_uid] = fresh
    if fresh.attempt > state.highest_attempt:
        state.highest_attempt = fresh.attempt
        state.journal_counters()
    state.touch(fresh)
    heapq.heappush(state.queued, (group.tag, group.uid, fresh.traj_uid))


def take_off(state: State, trajectory: Trajectory) -> None:
    """A running trajectory leaves its engine: the seat in flight and the room are free again."""
    engine = state.engines[trajectory.engine]
    del engine.running[trajectory.uid, trajectory.traj_uid]
    state.in_flight -= 1
    state.routing.offer(engine)
    state.disarm("trajectory", trajectory.id)
    if state.turns.pop((trajectory.uid, trajectory.traj_uid), None):
        state.disarm("turn", trajectory.id)


def drop(state: State, group: Group, reason: str, detail: str) -> None:
    """Forget a waiting group, whole. Its seat is free: admission draws another prompt for it."""
    for trajectory in group.trajectories:
        if trajectory.state == "running":
            take_off(state, trajectory)
            state.emit(Abort(trajectory.id))
        elif trajectory.state == "landed" and trajectory.hops_done < len(state.config.trajectory_hops):
            state.disarm("operator", trajectory.id, state.config.trajectory_hops[trajectory.hops_done])
    if group.state == "landed" and group.scored == state.config.n:
        state.disarm("operator", state.group_id(group.uid), state.config.group_hops[group.hops_done])
    state.buffer.leave(group)
    give_up(state, group, reason, detail)
    guard_against_dropping_all(state, reason, detail)


def give_up(state: State, group: Group, reason: str, detail: str) -> None:
    """The group is finished without being trained."""
    group.state, group.reason, group.detail = "dropped", reason, detail
    lost(state, group, reason)
    state.emit(Drop(state.group_id(group.uid), reason, detail))
    set_aside(state, group, state.published)


def set_aside(state: State, group: Group, version: int) -> None:
    """Trained or dropped at this published version: kept until a checkpoint covers it."""
    del state.groups[group.uid]
    group.version = version
    group.rows = sum([trajectory.rows for trajectory in group.trajectories]) or 1
    state.touch(group)
    if version <= state.saved:
        state.covered.append(group.uid)
        return
    if group.tag > max([state.saved, *(batch.batch + 1 for batch in state.saving)]):
        group.trajectories = []  # no checkpoint that a rollback may still go to knew it: all that is left to it is to be pending
    state.uncovered.append(group)
    before, state.uncovered_rows = state.uncovered_rows, state.uncovered_rows + group.rows
    _guard_against_keeping_all(state, before)


def _guard_against_keeping_all(state: State, before: int) -> None:
    """A warning at half of what may be kept (the next version is saved then, see ``rows_pile_up``), and the end beyond it."""
    bound, now = state.config.max_uncovered_rows, state.uncovered_rows
    kept = f"{now} rows made since the checkpoint of version {state.saved} are kept for a rollback"
    advice = f"save more often ({state.save_failures} saves in a row failed)"
    if now > bound:
        state.fail(f"{kept}, more than max_uncovered_rows={bound}: {advice}")
    elif before <= bound // 2 < now:
        state.emit(Warn(f"{kept}; the next version is saved, and the run ends at more than max_uncovered_rows={bound}: {advice}"))


def rows_pile_up(state: State) -> bool:
    """Half of what may be kept is kept, and no save that would end it is under way."""
    return state.uncovered_rows > state.config.max_uncovered_rows // 2 and not state.saving


def run_hops(state: State) -> None:
    """The workers are new: ask again for every operator before boarding that has not returned."""
    for group in state.groups.values():
        if group.state == "landed" and group.scored == state.config.n:
            _pass_group(state, group)
            continue
        for trajectory in group.trajectories:
            if trajectory.state == "landed" and trajectory.hops_done < len(state.config.trajectory_hops):
                _score(state, group, trajectory)


def is_scored(config: Config, trajectory: Trajectory) -> bool:
    """Landed, whatever a filter then made of it, and every operator per trajectory has returned."""
    return trajectory.state in ("landed", "dropped") and trajectory.hops_done == len(config.trajectory_hops)


def live_trajectory(state: State, trajectory: TrajectoryId) -> Trajectory | None:
    """The trajectory of this id, if this attempt is the current one."""
    group = state.groups.get(trajectory.uid)
    if group is None or not 0 <= trajectory.traj_uid < len(group.trajectories):
        return None
    found = group.trajectories[trajectory.traj_uid]
    return found if found.attempt == trajectory.attempt else None


def _broken_contract(state: State, trajectory: Trajectory, event: Landed) -> str:
    """What is landed must have rows, and no token that another version than those between tag and published sampled."""
    if event.rows < 1:
        return "it landed without a row"
    for span in event.spans:
        if not trajectory.version_tag <= span.version <= state.published:
            return (
                f"tokens {span.start}:{span.end} were sampled by version {span.version}, outside of its tag {trajectory.version_tag} "
                f"to the published version {state.published}"
            )
    return ""


def _score(state: State, group: Group, trajectory: Trajectory) -> None:
    hops = state.config.trajectory_hops
    if trajectory.hops_done < len(hops):
        _run(state, hops[trajectory.hops_done], trajectory.id)
        return
    group.scored += 1
    if group.scored == state.config.n:
        _pass_group(state, group)


def _pass_group(state: State, group: Group) -> None:
    hops = state.config.group_hops
    if group.hops_done < len(hops):
        _run(state, hops[group.hops_done], state.group_id(group.uid))
        return
    group.state = "ready"
    state.touch(group)
    state.buffer.make_ready(group)


def _run(state: State, operator: str, unit: Unit) -> None:
    state.emit(Run(operator, unit))
    state.arm("operator", unit, operator)


def _asked(state: State, operator: str, unit: Unit) -> Group | None:
    """The group about which this operator was asked and has not answered yet."""
    if isinstance(unit, TrajectoryId):
        trajectory = live_trajectory(state, unit)
        if trajectory is None or trajectory.state != "landed":
            return None
        return state.groups[unit.uid] if _hop(state.config.trajectory_hops, trajectory.hops_done) == operator else None
    if not isinstance(unit, GroupId) or unit.timeline != state.timeline:
        return None
    group = state.groups.get(unit.uid)
    if group is None or group.scored < state.config.n:
        return None
    return group if _hop(state.config.group_hops, group.hops_done) == operator else None


def _hop(hops: tuple[str, ...], done: int) -> str | None:
    return hops[done] if done < len(hops) else None


def guard_against_dropping_all(state: State, reason: str, detail: str) -> None:
    """Nothing would ever be trained: end the run instead."""
    state.drops_in_a_row += 1
    if state.drops_in_a_row > state.config.drop_bound:
        state.fail(f"{state.drops_in_a_row} groups were dropped without a batch in between, the last one by {reason}: {detail}")
