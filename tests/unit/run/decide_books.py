"""The books of the world around ``decide``, kept from actions and events alone; the state is only compared with them.

What is checked, after every transition:
  1. a drawn prompt is in exactly one of live, trained, dropped    4. something is outstanding or the run is finished
  2. a batch holds whole groups, landed and passed by every hop    5. in-flight and queue stay within their bounds
  3. no trained span is too old (by policy)                        6. requests go to engines that hold the published version
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rlflow.run.controller import events as ev
from rlflow.run.controller.books import Books as Tables
from rlflow.run.controller.ids import BatchId, EvaluationId, GroupId, SyncId, TrajectoryId, Unit
from rlflow.run.controller.state import Config, Origin, State


@dataclass
class Member:
    """What the world knows of one trajectory of a drawn group."""

    state: str = "queued"
    attempts: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    hops: list[str] = field(default_factory=list)
    turn: int = 0
    """That was asked for last."""
    losses: int = 0
    """Attempts whose engine went down."""
    waits: bool = False
    """For an engine that is fit for this turn."""


@dataclass
class Host:
    """What the world knows of one engine."""

    start: int = 0
    up: bool = False
    held: int | None = None
    capacity: int = 0
    running: set[TrajectoryId] = field(default_factory=set)


class Books:
    def __init__(self, config: Config, origin: Origin | None = None) -> None:
        self.config, self.origin = config, origin or Origin()
        self.state = State(config, origin)
        self.tables = Tables()
        """What a ledger would hold."""
        self.published = self.formed = self.origin.version
        self.timeline = self.origin.timeline
        self.floor = self.highest = self.origin.attempt
        """The first attempt of this timeline, and the highest of all."""
        self.tags: dict[int, int] = {}
        self.members: dict[int, list[Member]] = {}
        self.group_hops: dict[int, list[str]] = {}
        self.consumed: dict[int, int] = {}
        self.trained: Counter[int] = Counter()
        self.dropped: Counter[int] = Counter()
        self.dropped_at: dict[int, int] = {}
        self.recycled: set[int] = set()
        self.hosts = {name: Host() for name in config.engines}
        self.starts: dict[str, int] = {}
        self.runs: dict[tuple[str, Unit], None] = {}
        self.syncs: dict[str, SyncId] = {}
        self.evaluations: dict[EvaluationId, None] = {}
        self.evaluated: list[int] = []
        self.saves: dict[BatchId, None] = {}
        self.saved: list[int] = []
        self.training: ev.Train | None = None
        self.timers: set[str] = set()
        self.finish: ev.Finish | None = None
        self.workers_up = False
        self.workers_start = 0
        self.source_end: int | None = None
        self.stops = 0
        self.harm = 0
        """Events that may end a run with a failure."""
        self.history: list[ev.AnyEvent] = []

    # -- actions, checked one by one

    def _start(self, action: ev.Start) -> None:
        host = self.hosts[action.engine]
        assert not host.up
        assert action.engine not in self.starts
        assert action.start == host.start + 1
        host.start = self.starts[action.engine] = action.start

    def _startworkers(self, action: ev.StartWorkers) -> None:
        assert not self.workers_up
        assert action.start == self.workers_start + 1
        assert action.checkpoint == (max(self.saved) if self.saved else None)
        self.workers_start = action.start

    def _dispatch(self, action: ev.Dispatch) -> None:
        trajectory, host = action.trajectory, self.hosts[action.engine]
        assert self.stops == 0
        assert len(self.running()) < self.state.watermark.value
        assert host.up
        assert action.engine not in self.syncs
        assert host.held == self.published == action.version_tag
        assert len(host.running) < host.capacity
        if trajectory.uid not in self.tags:
            self._register(trajectory.uid)
        key = (self.tags[trajectory.uid], trajectory.uid, trajectory.traj_uid)
        assert key == min(self._queued()), "not the oldest first"
        member = self._member(trajectory)
        assert member.state == "queued"
        assert trajectory.attempt == self.floor + len(member.attempts)
        self.highest = max(self.highest, trajectory.attempt)
        assert max(len(member.attempts) - member.losses, member.losses) < self.config.max_attempts
        member.attempts.append(trajectory.attempt)
        member.state, member.versions, member.hops, member.turn, member.waits = "running", [self.published], [], 0, False
        host.running.add(trajectory)

    def _continue(self, action: ev.Continue) -> None:
        trajectory, member, host = action.trajectory, self._member(action.trajectory), self.hosts[action.engine]
        assert trajectory in self.running()
        assert (member.waits, member.turn) == (True, action.turn)
        assert host.up
        assert action.engine not in self.syncs
        assert host.held is not None
        assert host.held >= member.versions[0], "an older version than the one it began with"
        if trajectory not in host.running:
            assert len(host.running) < host.capacity
            self._take_off(trajectory)
            host.running.add(trajectory)
            member.versions.append(host.held)
        member.waits = False

    def _register(self, uid: int) -> None:
        config, reach = self.config, min(self.published + self.config.max_lag, self.config.last)
        assert uid == self.next_prompt()
        assert self.source_end is None or uid < self.source_end
        assert not config.prompts or uid < config.prompts
        room = (reach + 1 - self.formed) * config.groups_per_batch + (config.oversample if reach >= self.formed else 0)
        assert len(self.waiting()) + 1 <= room
        self.tags[uid] = self.published
        self.members[uid] = [Member() for _ in range(config.n)]
        self.group_hops[uid] = []

    def _abort(self, action: ev.Abort) -> None:
        self._member(action.trajectory).state = "queued"
        self._take_off(action.trajectory)

    def _run(self, action: ev.Run) -> None:
        assert (action.operator, action.unit) not in self.runs
        if isinstance(action.unit, TrajectoryId):
            assert self._member(action.unit).state == "landed"
        else:
            assert isinstance(action.unit, GroupId)
            assert all(member.state == "landed" for member in self.members[action.unit.uid])
        self.runs[action.operator, action.unit] = None

    def _train(self, action: ev.Train) -> None:
        assert self.training is None
        assert self.stops == 0
        assert action.batch == BatchId(self.timeline, self.published)
        assert list(action.groups) == sorted(set(action.groups))
        assert list(action.trajectories) == sorted(action.trajectories)
        assert Counter(t.uid for t in action.trajectories) == dict.fromkeys(action.groups, self.config.n)
        for trajectory in action.trajectories:
            member = self._member(trajectory)
            assert member.attempts[-1] == trajectory.attempt
            assert self.config.policy in ("mask", "correct") or action.batch.batch - member.versions[0] <= self.config.max_lag
        if self.config.policy == "mask":
            newest = [max(version for member in self.members[uid] for version in member.versions) for uid in action.groups]
            assert all(action.batch.batch - version <= self.config.max_lag for version in newest), "nothing is left of a group"
        self.training = action

    def _sync(self, action: ev.Sync) -> None:
        sync = action.sync
        assert self.workers_up
        assert self.hosts[sync.engine].up
        assert sync.engine not in self.syncs
        assert sync.version == self.published
        assert all(evaluation.engine != sync.engine for evaluation in self.evaluations), "an engine under evaluation is synced"
        self.syncs[sync.engine] = sync
        self.hosts[sync.engine].held = None

    def _evaluate(self, action: ev.Evaluate) -> None:
        evaluation = action.evaluation
        assert self.hosts[evaluation.engine].held == evaluation.version
        assert all(other.engine != evaluation.engine for other in self.evaluations)
        self.evaluations[evaluation] = None

    def _void(self, action: ev.Void) -> None:
        assert action.evaluation not in self.evaluations, "scores that are still to come are not wanted"

    def _save(self, action: ev.Save) -> None:
        assert action.batch.batch + 1 == self.published
        assert action.batch not in self.saves
        assert self.training is None
        self.saves[action.batch] = None

    def _drop(self, action: ev.Drop) -> None:
        uid = action.group.uid
        if action.reason == "pass rate":
            self._register(uid)
        elif action.reason == "batch":
            del self.consumed[uid]
        assert uid in self.waiting()
        self.dropped[uid] += 1
        self.dropped_at[uid] = self.published
        self.runs = dict.fromkeys(key for key in self.runs if key[1].uid != uid)  # type: ignore[union-attr]
        assert not any(member.state == "running" for member in self.members[uid])

    def _recycle(self, action: ev.Recycle) -> None:
        """Each once, when it is covered."""
        assert not self.recycled & set(action.uids)
        self.recycled.update(action.uids)

    def _warn(self, action: ev.Warn) -> None:
        assert "could not be saved" in action.what or "max_uncovered_rows" in action.what

    def _arm(self, action: ev.Arm) -> None:
        assert action.name not in self.timers
        assert action.seconds > 0
        self.timers.add(action.name)

    def _disarm(self, action: ev.Disarm) -> None:
        self.timers.remove(action.name)

    def _finish(self, action: ev.Finish) -> None:
        self.finish = action
        if action.outcome == "failed":
            assert self.harm or self.dropped.total() > self.config.drop_bound, action.why
            return
        if action.outcome == "stopped":
            assert self.stops == 2 or (self.stops == 1 and self.training is None and not self.saves)
            return
        assert self.stops == 0
        assert [self.training, *self.saves, *self.evaluations, *self.syncs] == [None]
        assert self.published == self.formed
        assert self.formed == self.config.last + 1 or (self.is_exhausted() and not self.waiting())
        assert self.published == self.origin.version or max(self.saved) == self.published
        assert not self.config.eval_every or max(self.evaluated) == self.published

    # -- books

    def covered(self) -> set[int]:
        raise NotImplementedError

    def next_prompt(self) -> int:
        raise NotImplementedError

    def running(self) -> list[TrajectoryId]:
        return sorted(trajectory for host in self.hosts.values() for trajectory in host.running)

    def waiting(self) -> set[int]:
        return {uid for uid in self.tags if uid not in self.consumed and uid not in self.dropped}

    def is_exhausted(self) -> bool:
        if self.state.is_all_filtered:
            return True
        ends = [end for end in (self.source_end, self.config.prompts or None) if end is not None]
        return bool(ends) and self.next_prompt() >= min(ends)

    def check(self) -> None:
        self._note_formed()
        state, config = self.state, self.config
        assert all(count == 1 for count in (*self.trained.values(), *self.dropped.values()))
        assert not set(self.trained) & set(self.dropped)
        assert set(state.groups) == set(self.tags) - set(self.trained) - set(self.dropped)
        assert state.waiting == len(self.waiting())
        assert state.in_flight == len(self.running())
        assert config.n <= state.watermark.value <= config.highest_watermark
        assert not config.watermark or state.watermark.value == config.watermark
        assert {uid for uid, row in self.tables.groups.items() if row.state not in ("trained", "dropped")} == set(state.groups)
        assert state.published == self.published
        assert self.recycled == self.covered() - set(self.tables.groups), "rows are kept exactly for groups that are live or uncovered"
        assert sorted({*self.tags} - self.recycled) == sorted(self.tables.groups)
        assert state.queue_depth <= config.queue
        assert {name for name, engine in state.engines.items() if engine.state != "down"} == {n for n, h in self.hosts.items() if h.up}
        if self.finish is None:
            assert self.timers == set(state.armed)
            assert {name for name in self.timers if name.startswith("turn ")} == {f"turn {trajectory}" for trajectory in self.turns()}
            full = sum(host.up and not host.capacity for host in self.hosts.values())
            assert len(self.timers) == len(self.outstanding()) + 2 * len(self.turns()) + full
            assert self.outstanding() or full, "nothing is outstanding and the run is not finished"

    def outstanding(self) -> list[object]:
        """All that an answer is awaited for; each has a timer."""
        running = sorted(set(self.running()) - set(self.turns()))
        waits: list[object] = [*running, *self.runs, *self.syncs.values(), *self.evaluations, *self.saves, *self.starts]
        return waits + [self.training] * (self.training is not None) + ["workers"] * (not self.workers_up)

    def turns(self) -> list[TrajectoryId]:
        """In flight, but it is their engine that is waited for."""
        return [trajectory for trajectory in self.running() if self._member(trajectory).waits]

    def _note_formed(self) -> None:
        """Batches formed in this transition: whole, scored, and chosen so that what stays behind can make it."""
        formed = [batch for batch in (self.state.training, *self.state.batches) if batch is not None and batch.id.batch >= self.formed]
        for batch in formed:
            assert batch.id.batch == self.formed <= self.config.last
            assert len(batch.groups) == self.config.groups_per_batch or self.is_exhausted()
            for uid in batch.groups:
                assert uid in self.waiting()
                assert all(m.state == "landed" and m.hops == list(self.config.trajectory_hops) for m in self.members[uid])
                assert self.group_hops[uid] == list(self.config.group_hops)
                self.consumed[uid] = batch.id.batch
            self.formed += 1
        if formed:
            self._check_the_rest_can_make_it()

    def _check_the_rest_can_make_it(self) -> None:
        """Earliest deadline first, P seats a batch. Those registered since have seats too: admission counts them all."""
        for i, tag in enumerate(sorted(self.tags[uid] for uid in self.waiting())):
            if not self.config.oversample and self.config.policy in ("wait", "drop"):
                assert self.formed + i // self.config.groups_per_batch <= tag + self.config.max_lag

    def _queued(self) -> list[tuple[int, int, int]]:
        return [
            (self.tags[uid], uid, traj_uid)
            for uid in self.waiting()
            for traj_uid, member in enumerate(self.members[uid])
            if member.state == "queued"
        ]

    def _member(self, trajectory: TrajectoryId) -> Member:
        return self.members[trajectory.uid][trajectory.traj_uid]

    def _take_off(self, trajectory: TrajectoryId) -> None:
        for host in self.hosts.values():
            host.running.discard(trajectory)

    def _lose(self, name: str) -> None:
        host = self.hosts[name]
        host.up, host.held = False, None
        for trajectory in host.running:
            self._member(trajectory).state = "queued"
            self._member(trajectory).losses += 1
        host.running.clear()
        self.syncs.pop(name, None)
        self.evaluations = dict.fromkeys(evaluation for evaluation in self.evaluations if evaluation.engine != name)
