"""What each action does to the world, and what must hold of it: one function an action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import BatchId, GroupId, TrajectoryId

if TYPE_CHECKING:
    from ring_world import Ring

__all__ = ["perform"]

BOUNDED = ("wait", "drop")
"""Policies under which no trained span is older than max_lag."""


def perform(ring: Ring, action: ev.AnyAction) -> None:
    PERFORM[type(action)](ring, action)


def start(ring: Ring, action: ev.Start) -> None:
    host = ring.hosts[action.engine]
    assert not host.up
    assert action.engine not in ring.starts
    assert action.start == host.start + 1
    host.start = ring.starts[action.engine] = action.start


def start_workers(ring: Ring, action: ev.StartWorkers) -> None:
    accounts = ring.accounts
    assert action.start == ring.workers_start + 1
    assert action.checkpoint == (accounts.checkpoint if accounts.checkpoint > accounts.origin.version else None)
    ring.workers_start, ring.workers_up = action.start, False


def dispatch(ring: Ring, action: ev.Dispatch) -> None:
    """Invariants 5 and 6; the oldest first; the smallest prompt that is free."""
    trajectory, host, accounts = action.trajectory, ring.hosts[action.engine], ring.accounts
    assert ring.stops == 0
    assert len(ring.running()) < ring.state.watermark.value
    assert host.up
    assert action.engine not in ring.syncs
    assert host.held == (accounts.timeline, accounts.published)
    assert action.version_tag == accounts.published
    assert len(host.running) < host.capacity
    if trajectory.uid not in accounts.prompts:
        assert trajectory.uid == accounts.next_draw()
        assert accounts.room() >= 1
        accounts.draw(trajectory.uid)
    prompt = accounts.prompts[trajectory.uid]
    assert (prompt.tag, trajectory.uid, trajectory.traj_uid) == min(accounts.queued()), "not the oldest first"
    member = accounts.member(trajectory)
    assert member.state == "queued"
    assert max(member.failures, member.losses) < ring.config.max_attempts
    assert trajectory not in accounts.sent, "an attempt is made twice"
    assert trajectory.attempt >= accounts.origin.attempt
    accounts.sent.add(trajectory)
    member.state, member.attempt, member.tag, member.versions = "running", trajectory.attempt, accounts.published, [accounts.published]
    host.running[trajectory] = None


def go_on(ring: Ring, action: ev.Continue) -> None:
    """A later turn, on an engine of this timeline whose weights are no older than the tag."""
    host, member = ring.hosts[action.engine], ring.accounts.member(action.trajectory)
    assert member.state == "running"
    assert member.asked
    assert action.turn == member.turn
    assert member.attempt == action.trajectory.attempt
    assert host.up
    assert action.engine not in ring.syncs
    assert host.held is not None
    assert host.held[0] == ring.accounts.timeline
    assert host.held[1] >= member.tag
    member.asked = False
    if action.trajectory not in host.running:
        ring.take_off(action.trajectory)
        host.running[action.trajectory] = None
        if member.versions[-1] != host.held[1]:
            member.versions.append(host.held[1])


def abort(ring: Ring, action: ev.Abort) -> None:
    trajectory = action.trajectory
    prompt = ring.accounts.prompts.get(trajectory.uid)
    if prompt is not None and prompt.members[trajectory.traj_uid].attempt == trajectory.attempt:
        if prompt.members[trajectory.traj_uid].state == "running":
            prompt.members[trajectory.traj_uid].failures += 1
            ring.give_up(trajectory)
        assert prompt.members[trajectory.traj_uid].state == "queued"
    ring.take_off(trajectory)


def run(ring: Ring, action: ev.Run) -> None:
    operator, unit, config = action.operator, action.unit, ring.config
    assert (operator, unit) not in ring.runs
    if isinstance(unit, TrajectoryId):
        member = ring.accounts.member(unit)
        assert member.state == "landed"
        assert member.attempt == unit.attempt
        assert operator == config.trajectory_hops[member.hops]
    else:
        assert isinstance(unit, GroupId)
        assert unit.timeline == ring.accounts.timeline
        prompt = ring.accounts.prompts[unit.uid]
        assert prompt.has_landed
        assert all(member.hops == len(config.trajectory_hops) for member in prompt.members)
        assert operator == config.group_hops[prompt.hops]
    ring.runs[operator, unit] = None


def train(ring: Ring, action: ev.Train) -> None:
    """Invariants 2 and 3."""
    accounts, batch = ring.accounts, action.batch
    assert ring.training is None
    assert ring.stops == 0
    assert ring.workers_up
    assert batch == BatchId(accounts.timeline, accounts.published)
    assert batch.batch not in accounts.trained_in
    assert list(action.groups) == sorted(set(action.groups))
    assert list(action.trajectories) == sorted(action.trajectories)
    assert [(t.uid, t.traj_uid) for t in action.trajectories] == [(uid, i) for uid in action.groups for i in accounts.prompts[uid].left]
    for trajectory in action.trajectories:
        member = accounts.member(trajectory)
        assert member.state == "landed"
        assert member.attempt == trajectory.attempt
        assert all(version <= accounts.published for version in member.versions), "sampled by weights of a dead timeline"
        assert ring.config.policy not in BOUNDED or batch.batch - min(member.versions) <= ring.config.max_lag, "older than max_lag"
    if ring.config.policy == "mask":
        newest = [max(max(prompt.members[i].versions) for i in prompt.left) for prompt in map(accounts.prompts.__getitem__, action.groups)]
        assert all(batch.batch - version <= ring.config.max_lag for version in newest), "nothing is left of a group"
    ring.training = action


def sync(ring: Ring, action: ev.Sync) -> None:
    told = action.sync
    assert ring.workers_up
    assert ring.hosts[told.engine].up
    assert told.engine not in ring.syncs
    assert (told.timeline, told.version) == (ring.accounts.timeline, ring.accounts.published)
    assert all(evaluation.engine != told.engine for evaluation in ring.evaluations), "an engine under evaluation is synced"
    ring.syncs[told.engine] = told
    ring.hosts[told.engine].held = None


def evaluate(ring: Ring, action: ev.Evaluate) -> None:
    evaluation = action.evaluation
    assert ring.hosts[evaluation.engine].held == (evaluation.timeline, evaluation.version)
    assert evaluation.timeline == ring.accounts.timeline
    assert all(other.engine != evaluation.engine for other in ring.evaluations)
    accounts = ring.accounts
    if not accounts.has_something_to_train and evaluation.version == accounts.published:
        accounts.due.setdefault(accounts.published, None)  # the last one always is
    pinned = {due for dues in ring.evaluations.values() for due in dues}
    served = [due for due, scored in accounts.due.items() if scored is None and due not in pinned and due <= evaluation.version]
    assert served, "nothing is due"
    ring.evaluations[evaluation] = tuple(served)


def void(ring: Ring, action: ev.Void) -> None:
    """Of a timeline that died, or of an engine that did."""
    evaluation = action.evaluation
    assert evaluation.timeline != ring.accounts.timeline or evaluation not in ring.evaluations
    ring.evaluations.pop(evaluation, None)


def save(ring: Ring, action: ev.Save) -> None:
    assert action.batch == BatchId(ring.accounts.timeline, ring.accounts.published - 1)
    assert action.batch not in ring.saves
    assert ring.training is None, "the weights move while they are saved"
    assert ring.workers_up
    ring.saves[action.batch] = None


def drop(ring: Ring, action: ev.Drop) -> None:
    uid, accounts = action.group.uid, ring.accounts
    prompt = accounts.prompts[uid]
    assert action.group.timeline == accounts.timeline
    assert prompt.state == ("consumed" if uid in ring.failed_groups else "waiting")
    assert not any(member.state == "running" for member in prompt.members)
    assert action.reason in REASONS | {hop.operator for hop in ring.config.hops}
    assert action.reason != "stale" or ring.config.policy in ("drop", "mask")
    assert action.reason != "oversampled" or ring.config.oversample
    accounts.drop(uid)
    ring.runs = dict.fromkeys(key for key in ring.runs if key[1].uid != uid)  # type: ignore[union-attr]


REASONS = {"attempts", "engine", "oversampled", "stale", "remainder", "batch"}


def recycle(ring: Ring, action: ev.Recycle) -> None:
    """Nothing that a rollback could ask for again (invariant 8)."""
    accounts = ring.accounts
    for uid in action.uids:
        assert uid not in accounts.prompts or accounts.is_covered(accounts.prompts[uid]), f"rows of prompt {uid} may be needed again"
        ring.disk.discard(uid)


def arm(ring: Ring, action: ev.Arm) -> None:
    assert action.name not in ring.timers
    assert action.seconds > 0
    ring.timers.add(action.name)


def disarm(ring: Ring, action: ev.Disarm) -> None:
    ring.timers.remove(action.name)


def warn(ring: Ring, action: ev.Warn) -> None:
    assert action.what


def finish(ring: Ring, action: ev.Finish) -> None:
    ring.finish, accounts, config = action, ring.accounts, ring.config
    if action.outcome == "failed":
        dropped = sum(prompt.state == "dropped" for prompt in accounts.prompts.values())
        assert ring.harm or dropped > config.drop_bound, action.why
        return
    if action.outcome == "stopped":
        assert ring.stops == 2 or (ring.stops == 1 and ring.training is None and not ring.saves)
        return
    assert ring.stops == 0
    assert [ring.training, *ring.saves, *ring.evaluations, *ring.syncs] == [None]
    assert accounts.published == accounts.formed == accounts.checkpoint
    assert accounts.formed > config.last or (accounts.next_draw() is None and not accounts.of("waiting"))
    assert None not in accounts.due.values()
    scored = {*accounts.due, *accounts.due.values()}  # the last version may have been scored for one that was due before it
    assert not config.eval_every or accounts.published in scored


PERFORM: dict[type[Any], Callable[[Any, Any], None]] = {
    ev.Start: start, ev.StartWorkers: start_workers, ev.Dispatch: dispatch, ev.Continue: go_on, ev.Abort: abort, ev.Run: run,
    ev.Train: train, ev.Sync: sync, ev.Evaluate: evaluate, ev.Void: void, ev.Save: save, ev.Drop: drop, ev.Recycle: recycle, ev.Warn: warn,
    ev.Arm: arm, ev.Disarm: disarm, ev.Finish: finish,
}  # fmt: skip
