"""What a rollback does to the books of the world, by the rules as they are written; the state is only compared with them."""

from __future__ import annotations

from itertools import count

from decide_books import Books, Member

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import TrajectoryId


class Timelines(Books):
    @property
    def checkpoint(self) -> int:
        """The newest durable version, the one the run began with included."""
        return max([self.origin.version, *self.saved])

    def covered(self) -> set[int]:
        """Trained in batches below the checkpoint, or dropped when a version up to it was published."""
        by_batch = {uid for uid in self.trained if self.consumed[uid] < self.checkpoint}
        return by_batch | {uid for uid, version in self.dropped_at.items() if version <= self.checkpoint}

    def next_prompt(self) -> int:
        """The smallest uid that is neither finished nor live."""
        return next(uid for uid in count(self.origin.uid) if uid not in self.tags)

    def roll_back(self, actions: list[ev.AnyAction]) -> list[ev.AnyAction]:
        """Begin a new timeline at the checkpoint; what is left to be looked at of these actions, the first of one."""
        ran = self.running()
        live = {uid for uid in self.tags if uid not in self.trained and uid not in self.dropped}
        landed = {
            TrajectoryId(uid, i, member.attempts[-1])
            for uid in live
            for i, member in enumerate(self.members[uid])
            if member.state == "landed"
        }
        gone = self._begin()
        kept = {
            TrajectoryId(uid, i, member.attempts[-1])
            for uid in self.waiting()
            for i, member in enumerate(self.members[uid])
            if member.state == "landed"
        }
        aborted = {action.trajectory for action in actions if isinstance(action, ev.Abort)}
        assert aborted == {*ran, *(t for t in landed - kept if t.uid in self.waiting())}
        recycled = [action for action in actions if isinstance(action, ev.Recycle)]
        assert [set(action.uids) for action in recycled] == ([gone] if gone else [])
        return [action for action in actions if not isinstance(action, ev.Abort | ev.Recycle)]

    def _begin(self) -> set[int]:
        """Uids that are pending again."""
        self.timeline += 1
        assert self.state.attempt_floor > self.highest, "an attempt was sent before"
        self.floor = self.highest = self.state.attempt_floor
        checkpoint, covered = self.checkpoint, self.covered()
        self.published = self.formed = checkpoint
        uncovered = set(self.tags) - covered
        for uid in uncovered:
            for record in (self.consumed, self.trained, self.dropped, self.dropped_at):
                record.pop(uid, None)
            self._take_back(uid)
        gone = {uid for uid in uncovered if self.tags[uid] > checkpoint}
        gone |= self._without_seat(uncovered - gone)
        for uid in gone:
            del self.tags[uid], self.members[uid], self.group_hops[uid]
        for host in self.hosts.values():
            host.running.clear()
            host.held = None
        self.runs, self.syncs, self.evaluations, self.saves, self.training = {}, {}, {}, {}, None
        self.evaluated = [version for version in self.evaluated if version <= checkpoint]
        self.workers_up = False
        return gone

    def _take_back(self, uid: int) -> None:
        """Landed trajectories sampled by versions up to the checkpoint stay, the others start again."""
        for i, member in enumerate(self.members[uid]):
            if member.state != "landed" or max(member.versions) > self.checkpoint:
                self.members[uid][i] = Member()
        if any(member.state != "landed" for member in self.members[uid]):
            self.group_hops[uid] = []

    def _without_seat(self, uids: set[int]) -> set[int]:
        """One by one: while too many are due by one of the next batches, the one that is worth least goes."""
        config, gone = self.config, set[int]()
        for k in range(-1, config.max_lag + 1):
            while len(due := [u for u in uids - gone if self.tags[u] + config.max_lag <= self.checkpoint + k]) > (
                (k + 1) * config.groups_per_batch
            ):
                gone.add(max(due, key=lambda uid: (-self._worth(uid), self.tags[uid], uid)))
        return gone

    def _worth(self, uid: int) -> int:
        members, config = self.members[uid], self.config
        if any(member.state != "landed" for member in members):
            return 0
        scored = all(member.hops == list(config.trajectory_hops) for member in members)
        return 2 if scored and self.group_hops[uid] == list(config.group_hops) else 1
