"""A world of integers around ``decide``: it performs the actions, answers them well or badly, and keeps books on every one of them."""

from __future__ import annotations

import copy
import random

from decide_timelines import Timelines

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import BatchId, EvaluationId, Span, SyncId, TrajectoryId, Unit
from rlflow.run.controller.state import State


class World(Timelines):
    takes_turns = False

    # -- what happens

    def feed(self, event: ev.AnyEvent) -> list[ev.AnyAction]:
        self.history.append(event)
        actions = decide(self.state, event)
        self.tables.apply(self.state.journal)
        if self.state.timeline != self.timeline:
            actions = self.roll_back(actions)
        for action in actions:
            assert self.finish is None, "an action after Finish"
            getattr(self, f"_{type(action).__name__.lower()}")(action)
        self.check()
        return actions

    def begin(self, capacity: int = 64) -> list[ev.AnyAction]:
        """Everything comes up and is synced; what the last sync made possible."""
        self.feed(ev.RunStarted())
        actions = self.come_up()
        for name in list(self.starts):
            self.engine_up(name, capacity)
            actions = self.sync(name)
        return actions

    def come_up(self) -> list[ev.AnyAction]:
        self.workers_up = True
        return self.feed(ev.WorkersUp(self.workers_start))

    def engine_up(self, name: str, capacity: int = 64) -> list[ev.AnyAction]:
        start = self.starts.pop(name)
        host = self.hosts[name]
        host.up, host.capacity, host.held = True, capacity, None
        return self.feed(ev.EngineUp(name, start, capacity))

    def engine_down(self, name: str) -> list[ev.AnyAction]:
        self.harm += 1
        self.starts.pop(name, None)
        start = self.hosts[name].start
        self._lose(name)
        return self.feed(ev.EngineDown(name, start, "killed"))

    def land(self, trajectory: TrajectoryId, rows: int = 1, tokens: int = 4) -> list[ev.AnyAction]:
        """Its tokens were sampled by every version that its engine held meanwhile."""
        member = self._member(trajectory)
        self._take_off(trajectory)
        member.state = "landed"
        spans = tuple(Span(version, i * tokens, (i + 1) * tokens) for i, version in enumerate(member.versions))
        return self.feed(ev.Landed(trajectory, rows, spans))

    def turn(self, trajectory: TrajectoryId) -> list[ev.AnyAction]:
        """The next turn may be asked for."""
        member = self._member(trajectory)
        member.turn, member.waits = member.turn + 1, True
        return self.feed(ev.Turn(trajectory, member.turn))

    def fail(self, trajectory: TrajectoryId, *, lost: bool = False) -> list[ev.AnyAction]:
        self._take_off(trajectory)
        self._member(trajectory).state = "queued"
        self._member(trajectory).losses += lost
        return self.feed(ev.Failed(trajectory, "a process died" if lost else "the environment crashed", lost))

    def ran(self, operator: str, unit: Unit, verdict: str = "keep") -> list[ev.AnyAction]:
        del self.runs[operator, unit]
        if verdict == "keep" and isinstance(unit, TrajectoryId):
            self._member(unit).hops.append(operator)
        elif verdict == "keep":
            self.group_hops[unit.uid].append(operator)  # type: ignore[union-attr]
        return self.feed(ev.Ran(operator, unit, verdict, "no variance" if verdict == "drop" else ""))  # type: ignore[arg-type]

    def train(self, passed: tuple[tuple[int, int, int], ...] = ()) -> list[ev.AnyAction]:
        assert self.training is not None
        batch, self.training = self.training, None
        self.trained.update(batch.groups)
        self.published += 1
        return self.feed(ev.Trained(batch.batch, passed))

    def group_failed(self, uid: int) -> list[ev.AnyAction]:
        """The batch in training goes on without this group."""
        batch = self.training
        assert batch is not None
        left = tuple(trajectory for trajectory in batch.trajectories if trajectory.uid != uid)
        self.training = ev.Train(batch.batch, tuple(other for other in batch.groups if other != uid), left)
        return self.feed(ev.GroupFailed(batch.batch, uid, "NaN"))

    def sync(self, name: str) -> list[ev.AnyAction]:
        sync = self.syncs.pop(name)
        host = self.hosts[name]
        host.held = sync.version
        for trajectory in host.running:
            self._member(trajectory).versions.append(sync.version)
        return self.feed(ev.Synced(sync))

    def fail_sync(self, name: str) -> list[ev.AnyAction]:
        self.harm += 1
        return self.feed(ev.SyncFailed(self.syncs.pop(name), "connection reset"))

    def evaluate(self, evaluation: EvaluationId) -> list[ev.AnyAction]:
        del self.evaluations[evaluation]
        self.evaluated.append(evaluation.version)
        return self.feed(ev.Evaluated(evaluation))

    def fail_evaluation(self, evaluation: EvaluationId) -> list[ev.AnyAction]:
        self.harm += 1
        del self.evaluations[evaluation]
        return self.feed(ev.EvaluationFailed(evaluation, "scorer crashed"))

    def save(self, batch: BatchId) -> list[ev.AnyAction]:
        del self.saves[batch]
        self.saved.append(batch.batch + 1)
        return self.feed(ev.Saved(batch))

    def fail_save(self, batch: BatchId) -> list[ev.AnyAction]:
        self.harm += 1
        del self.saves[batch]
        return self.feed(ev.SaveFailed(batch, "disk full"))

    def trainer_down(self, worker: str) -> list[ev.AnyAction]:
        self.harm += 1
        return self.feed(ev.TrainerDown(worker, self.workers_start, "killed"))

    def run_out(self, name: str) -> list[ev.AnyAction]:
        """A timer runs out: what was waited for never comes."""
        kind = self.state.armed[name].kind
        subject = self.state.armed[name].subject
        self.timers.discard(name)
        if kind == "operator":
            self.runs = dict.fromkeys(key for key in self.runs if f"operator {key[0]} of" not in name or key[1] != subject)
        elif kind == "sync":
            self.harm += 1
            self.syncs.pop(subject.engine)  # type: ignore[union-attr]
        elif kind in ("engine start", "engine room"):
            self.harm += 1
            self.starts.pop(str(subject), None)
            self._lose(str(subject))
        elif kind == "evaluation":
            self.harm += 1
            del self.evaluations[subject]  # type: ignore[arg-type]
        elif kind == "save":
            self.harm += 1
            del self.saves[subject]  # type: ignore[arg-type]
        elif kind != "trajectory":
            self.harm += 1
        return self.feed(ev.Timeout(name))

    def stop(self) -> list[ev.AnyAction]:
        self.stops += 1
        return self.feed(ev.Stop())

    def end_source(self) -> list[ev.AnyAction]:
        drawn = max(self.tags, default=self.origin.uid - 1) + 1
        self.source_end = max(drawn, self.source_end or drawn)
        return self.feed(ev.SourceEnd())

    def replay(self, event: ev.AnyEvent) -> None:
        """Something that was heard before is heard again: nothing changes but a counter."""
        ignored = self.state.totals.ignored.total()
        before = _picture(self.state)
        assert decide(self.state, event) == []
        assert _picture(self.state) == before
        assert self.state.totals.ignored.total() == ignored + 1

    # -- driving

    def finish_fairly(self, rng: random.Random, at_most: int = 5000) -> None:
        """From here on everything succeeds, in any order: the run must come to its end."""
        for _ in range(at_most):
            if self.finish is not None:
                return
            self.answer(rng.choice(self.outstanding()), rng)
        raise AssertionError(f"not finished after {at_most} events: waiting for {sorted(self.state.armed)}")

    def answer(self, wait: object, rng: random.Random) -> list[ev.AnyAction]:
        """What is waited for comes, well."""
        if isinstance(wait, TrajectoryId):
            return self.turn(wait) if self.takes_turns and rng.random() < 0.4 else self.land(wait, rng.randint(1, 3))
        if isinstance(wait, tuple):
            return self.ran(*wait)
        if isinstance(wait, SyncId):
            return self.sync(wait.engine)
        if isinstance(wait, EvaluationId):
            return self.evaluate(wait)
        if isinstance(wait, BatchId):
            return self.save(wait)
        if isinstance(wait, ev.Train):
            return self.train()
        return self.come_up() if wait == "workers" else self.engine_up(str(wait), rng.randint(1, 6))

    def refuse(self, wait: object) -> list[ev.AnyAction]:
        """What is waited for fails."""
        if isinstance(wait, TrajectoryId):
            return self.fail(wait)
        if isinstance(wait, tuple):
            return self.ran(*wait, "drop")
        if isinstance(wait, SyncId):
            return self.fail_sync(wait.engine)
        if isinstance(wait, EvaluationId):
            return self.fail_evaluation(wait)
        if isinstance(wait, BatchId):
            return self.fail_save(wait)
        if isinstance(wait, ev.Train):
            return self.trainer_down("actor")
        if wait == "workers":
            return self.trainer_down("critic")
        return self.engine_down(str(wait))


def _picture(state: State) -> object:
    """Everything the state holds but the count of ignored events and the list of the last actions."""
    passing = ("actions", "journal", "buffer", "routing", "fleet")
    fields = copy.deepcopy({name: value for name, value in vars(state).items() if name not in passing})
    fields["totals"].ignored.clear()
    return fields, state.buffer.waiting_counts(), state.buffer.ready_counts()
