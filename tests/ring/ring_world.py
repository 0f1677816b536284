"""A world around ``decide``: it performs the actions on processes of its own, answers well or badly, kills, and checks every transition.

choose ──→ an answer, a failure, a timeout, a kill ──→ decide ──→ journal to the tables, actions to the world ──→ ring_checks
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ring_accounts import Accounts, Prompt
from ring_actions import perform
from ring_checks import check_resumed, check_transition
from ring_hosts import Host, Room, picture

from rlflow.run.controller import events as ev
from rlflow.run.controller.books import Books
from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import BatchId, EvaluationId, Span, SyncId, TrajectoryId, Unit
from rlflow.run.controller.journal import TimelineRow
from rlflow.run.controller.resume import resume
from rlflow.run.controller.schedule import Config, Origin
from rlflow.run.controller.state import State

__all__ = ["Ring"]

RESUMED = 4
"""After every so many transitions it is checked what a resume would make of the tables."""
GHOSTS = 64
"""Late answers that are kept to be given."""


class Ring:
    def __init__(self, config: Config, origin: Origin | None = None) -> None:
        self.accounts = Accounts(config, origin or Origin())
        self.state = State(config, origin)
        self.tables = Books()
        self.disk: set[int] = set()
        """Prompts with row files."""
        self.ghosts: list[ev.AnyEvent] = []
        """Answers to what was given up: they may still come."""
        self.finished = 0
        """Prompts that the tables held as finished, before this transition."""
        self.is_broken = False
        """A check failed: what follows would only hide it."""
        self.transitions = self.kills = self.rollbacks = 0
        self._boot()

    def _boot(self) -> None:
        """All processes are new."""
        self.hosts = {name: Host() for name in self.config.engines}
        self.starts: dict[str, int] = {}
        self.workers_start = 0
        self.workers_up = False
        self.runs: dict[tuple[str, Unit], None] = {}
        self.syncs: dict[str, SyncId] = {}
        self.evaluations: dict[EvaluationId, tuple[int, ...]] = {}
        self.saves: dict[BatchId, None] = {}
        self.training: ev.Train | None = None
        self.failed_groups: set[int] = set()
        self.timers: set[str] = set()
        self.finish: ev.Finish | None = None
        self.stops = self.harm = 0
        self.recycled: list[int] = []
        self.feed(ev.RunStarted())

    @property
    def config(self) -> Config:
        return self.accounts.config

    # -- one transition

    def feed(self, event: ev.AnyEvent) -> list[ev.AnyAction]:
        assert self.finish is None
        self.is_broken = True
        actions = decide(self.state, event)
        self.tables.apply(self.state.journal)
        self.transitions += 1
        if any(isinstance(change, TimelineRow) and change.timeline > self.accounts.timeline for change in self.state.journal):
            self._fall_back()
        for action in actions:
            assert self.finish is None, "an action after Finish"
            perform(self, action)
        check_transition(self)
        if self.transitions % RESUMED == 0:
            self._check_what_a_resume_would_give()
        self.is_broken = False
        return actions

    def _fall_back(self) -> None:
        """The core rolls back in place: engines stay as they are, all else that was under way is void."""
        self.rollbacks += 1
        self._remember_ghosts()
        self.accounts.back(self.config)
        self.runs, self.syncs, self.saves, self.training = {}, {}, {}, None
        self.failed_groups = set()
        self.workers_up = False

    def _remember_ghosts(self) -> None:
        late: list[ev.AnyEvent] = [ev.Landed(trajectory, 1, self.spans(trajectory)) for trajectory in self.running()]
        late += [ev.Synced(sync) for sync in self.syncs.values()]
        late += [ev.Evaluated(evaluation) for evaluation in self.evaluations]
        late += [ev.Saved(batch) for batch in self.saves]
        late += [ev.Ran(operator, unit) for operator, unit in self.runs if not isinstance(unit, TrajectoryId)]
        if self.training is not None:
            late.append(ev.Trained(self.training.batch))
        self.ghosts = [*self.ghosts, *late][-GHOSTS:]

    # -- what goes well

    def land(self, trajectory: TrajectoryId, rows: int = 1) -> None:
        member = self.accounts.member(trajectory)
        spans = self.spans(trajectory)
        self.take_off(trajectory)
        member.state, member.judged = "landed", (rows, trajectory.traj_uid % (rows + 1))
        self.disk.add(trajectory.uid)
        self.feed(ev.Landed(trajectory, rows, spans, member.judged))

    def spans(self, trajectory: TrajectoryId) -> tuple[Span, ...]:
        versions = self.accounts.member(trajectory).versions
        return tuple(Span(version, 4 * i, 4 * i + 4) for i, version in enumerate(versions))

    def end_turn(self, trajectory: TrajectoryId) -> None:
        member = self.accounts.member(trajectory)
        member.turn += 1
        member.asked = True
        self.feed(ev.Turn(trajectory, member.turn))

    def ran(self, operator: str, unit: Unit, verdict: str = "keep") -> None:
        del self.runs[operator, unit]
        judged, left = (0, 0), ()
        if isinstance(unit, TrajectoryId):
            self.accounts.member(unit).hops += verdict == "keep"
        else:
            prompt = self.accounts.prompts[unit.uid]  # type: ignore[union-attr]
            prompt.hops += verdict == "keep"
            prompt.judged = judged = (9, prompt.uid % 10)
            left = self._filtered(prompt, operator) if verdict == "keep" else ()
        self.feed(ev.Ran(operator, unit, verdict, "no variance" if verdict == "drop" else "", judged, left))  # type: ignore[arg-type]

    def _filtered(self, prompt: Prompt, operator: str) -> tuple[int, ...]:
        """Of every other prompt all but the first that may go, down to the remainder that is declared; (): all are left."""
        if not self.config.least_left or prompt.uid % 2:
            return ()
        gone = prompt.left[: max(len(prompt.left) - self.config.least_left, 0)]
        for traj_uid in gone:
            prompt.members[traj_uid].taken_out_by = operator
        return tuple(prompt.left) if gone else ()

    def train(self) -> None:
        assert self.training is not None
        batch, uids = self.training.batch, [uid for uid in self.training.groups if uid not in self.failed_groups]
        self.training, self.failed_groups = None, set()
        self.accounts.train(batch.batch, uids)
        passed = tuple((uid, 7, uid % 8) for uid in uids if uid % 3 == 0)
        for uid, *judged in passed:
            self.accounts.prompts[uid].judged = judged[0], judged[1]
        actions = self.feed(ev.Trained(batch, passed))
        is_due = self.config.save_every > 0 and (batch.batch + 1) % self.config.save_every == 0
        assert not is_due or self.stops or ev.Save(batch) in actions

    def sync(self, name: str) -> None:
        sync = self.syncs.pop(name)
        self._receive(name, sync)
        self.hosts[name].held = sync.timeline, sync.version
        self.feed(ev.Synced(sync))

    def _receive(self, name: str, sync: SyncId) -> None:
        """From now on its trajectories are sampled by these weights."""
        for trajectory in self.hosts[name].running:
            versions = self.accounts.member(trajectory).versions
            if versions[-1] != sync.version:
                versions.append(sync.version)

    def evaluate(self, evaluation: EvaluationId) -> None:
        self.accounts.score(self.evaluations.pop(evaluation), evaluation.version)
        self.feed(ev.Evaluated(evaluation))

    def save(self, batch: BatchId) -> None:
        del self.saves[batch]
        self.accounts.checkpoint = max(self.accounts.checkpoint, batch.batch + 1)
        self.feed(ev.Saved(batch))

    def come_up(self) -> None:
        self.workers_up = True
        self.feed(ev.WorkersUp(self.workers_start))

    def engine_up(self, name: str, capacity: int) -> None:
        start, host = self.starts.pop(name), self.hosts[name]
        host.up, host.capacity, host.held = True, capacity, None
        self.feed(ev.EngineUp(name, start, capacity))

    # -- what goes wrong

    def engine_down(self, name: str) -> None:
        self.harm += 1
        start = self.starts.pop(name, self.hosts[name].start)
        self.lose(name)
        self.feed(ev.EngineDown(name, start, "killed"))

    def lose(self, name: str) -> None:
        host = self.hosts[name]
        host.up, host.held = False, None
        for trajectory in list(host.running):
            self.accounts.member(trajectory).losses += 1
            self.give_up(trajectory)
        self.syncs.pop(name, None)
        self.evaluations = {evaluation: dues for evaluation, dues in self.evaluations.items() if evaluation.engine != name}

    def give_up(self, trajectory: TrajectoryId) -> None:
        """What still runs somewhere may land all the same, too late."""
        self.ghosts = [*self.ghosts, ev.Landed(trajectory, 1, self.spans(trajectory))][-GHOSTS:]
        self.take_off(trajectory)
        self.accounts.member(trajectory).queue()

    def fail(self, trajectory: TrajectoryId, *, lost: bool) -> None:
        self.take_off(trajectory)
        member = self.accounts.member(trajectory)
        member.failures, member.losses = member.failures + (not lost), member.losses + lost
        member.queue()
        self.feed(ev.Failed(trajectory, "a process died" if lost else "the environment crashed", lost))

    def fail_sync(self, name: str, *, received: bool) -> None:
        """Nobody knows what it holds now; the weights may have come all the same."""
        self.harm += 1
        sync = self.syncs.pop(name)
        if received:
            self._receive(name, sync)
        self.feed(ev.SyncFailed(sync, "connection reset"))

    def fail_evaluation(self, evaluation: EvaluationId) -> None:
        self.harm += 1
        del self.evaluations[evaluation]
        self.feed(ev.EvaluationFailed(evaluation, "scorer crashed"))

    def fail_save(self, batch: BatchId) -> None:
        self.harm += 1
        del self.saves[batch]
        self.feed(ev.SaveFailed(batch, "disk full"))

    def fail_group(self, uid: int) -> None:
        assert self.training is not None
        self.failed_groups.add(uid)
        self.feed(ev.GroupFailed(self.training.batch, uid, "the judge said nothing"))

    def workers_die(self) -> None:
        self.harm += 1
        self.feed(ev.TrainerDown("actor", self.workers_start, "killed"))

    def run_out(self, name: str) -> None:
        """What is waited for never comes."""
        armed = self.state.armed[name]
        kind, subject = armed.kind, armed.subject
        self.timers.discard(name)
        if kind not in ("trajectory", "operator"):
            self.harm += 1
        if kind == "operator":
            del self.runs[armed.operator, subject]  # type: ignore[arg-type]
        elif kind == "sync":
            del self.syncs[subject.engine]  # type: ignore[union-attr]
        elif kind == "engine start":
            self.starts.pop(str(subject))
            self.lose(str(subject))
        elif kind == "engine room":
            self.lose(str(subject))
        elif kind == "evaluation":
            del self.evaluations[subject]  # type: ignore[arg-type]
        elif kind == "save":
            del self.saves[subject]  # type: ignore[arg-type]
        self.feed(ev.Timeout(name))

    def stop(self) -> None:
        self.stops += 1
        self.feed(ev.Stop())

    def end_source(self) -> None:
        self.accounts.end_source()
        self.feed(ev.SourceEnd())

    def change_capacity(self, name: str, capacity: int) -> None:
        self.hosts[name].capacity = capacity
        self.feed(ev.Free(name, capacity))

    def late(self, kind: int, number: int) -> None:
        """An answer that nobody waits for any more, of any kind there is: it changes nothing and is counted."""
        kinds = sorted({type(ghost).__name__ for ghost in self.ghosts})
        ghosts = [ghost for ghost in self.ghosts if type(ghost).__name__ == kinds[kind % len(kinds)]]
        event = ghosts[number % len(ghosts)]
        ignored, before = self.state.totals.ignored.total(), picture(self.state)
        assert decide(self.state, event) == []
        assert self.state.journal == []
        assert picture(self.state) == before
        assert self.state.totals.ignored.total() == ignored + 1

    def kill(self, config: Config, times: int = 1) -> None:
        """SIGKILL after a commit, whether its actions were performed or not; then `rlflow resume`, with what may change.

        ``times`` - 1 resumes are killed themselves, when all they did was to begin a timeline.
        """
        self.is_broken = True
        self._remember_ghosts()
        for _ in range(times):
            self.kills += 1
            self.accounts.back(config)
            before = copy.deepcopy(self.tables)
            self.state = resume(config, self.tables)
            assert self.tables == before, "a resume that was not committed leaves no trace"
            self.tables.apply(self.state.journal)
            self.finished = len(self.tables.finished)
            check_resumed(self.state, self.accounts, self.tables)
        self.disk &= {uid for uid, prompt in self.accounts.prompts.items() if not self.accounts.is_covered(prompt)}
        self._boot()

    def _check_what_a_resume_would_give(self) -> None:
        """If it were killed here (invariant 7)."""
        accounts, tables = self.accounts.copy(), copy.deepcopy(self.tables)
        accounts.back(self.config)
        state = resume(self.config, tables)
        tables.apply(state.journal)
        check_resumed(state, accounts, tables)

    # -- what may happen

    def running(self) -> list[TrajectoryId]:
        return sorted(trajectory for host in self.hosts.values() for trajectory in host.running)

    def take_off(self, trajectory: TrajectoryId) -> None:
        for host in self.hosts.values():
            host.running.pop(trajectory, None)

    def between_turns(self) -> list[TrajectoryId]:
        """A turn has ended and the core has not asked for the next one: nothing can come of them."""
        return [trajectory for trajectory in self.running() if self.accounts.member(trajectory).asked]

    def outstanding(self) -> list[Any]:
        """All that an answer is awaited for, in a fixed order."""
        idle = set(self.between_turns())
        waits: list[Any] = [trajectory for trajectory in self.running() if trajectory not in idle]
        waits += sorted(self.runs, key=str)
        waits += [self.syncs[name] for name in sorted(self.syncs)]
        waits += [*sorted(self.evaluations), *sorted(self.saves), *sorted(self.starts)]
        waits += [self.training] * (self.training is not None)
        waits += [Room(name) for name in up(self) if not self.hosts[name].capacity]
        return waits + ["workers"] * (not self.workers_up)

    def answer(self, wait: Any, capacity: int = 2) -> None:
        """What is waited for comes, well."""
        if isinstance(wait, TrajectoryId):
            self.land(wait, 1 + wait.attempt % 3)
        elif isinstance(wait, tuple):
            self.ran(*wait)
        elif isinstance(wait, SyncId):
            self.sync(wait.engine)
        elif isinstance(wait, EvaluationId):
            self.evaluate(wait)
        elif isinstance(wait, BatchId):
            self.save(wait)
        elif isinstance(wait, ev.Train):
            self.train()
        elif isinstance(wait, Room):
            self.change_capacity(wait.engine, capacity)
        elif wait == "workers":
            self.come_up()
        else:
            self.engine_up(wait, capacity)

    def refuse(self, wait: Any, *, received: bool = False) -> None:
        """What is waited for fails."""
        if isinstance(wait, TrajectoryId):
            self.fail(wait, lost=received)
        elif isinstance(wait, tuple):
            self.ran(*wait, "drop")
        elif isinstance(wait, SyncId):
            self.fail_sync(wait.engine, received=received)
        elif isinstance(wait, EvaluationId):
            self.fail_evaluation(wait)
        elif isinstance(wait, BatchId):
            self.fail_save(wait)
        elif isinstance(wait, ev.Train) or wait == "workers":
            self.workers_die()
        elif isinstance(wait, Room):
            self.run_out(f"engine room {wait.engine}")
        else:
            self.engine_down(wait)


def up(ring: Ring) -> Sequence[str]:
    return [name for name, host in ring.hosts.items() if host.up]
