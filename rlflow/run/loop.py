"""The run, in the controller process: events in, `decide`, actions out.

    workers ──Landed, Trained, Synced ...──▶ queue ──▶ decide(state, event) ──▶ journal ──commit──▶ ledger
                 ▲                                                                └──▶ actions ──▶ perform ──calls──▶ workers
                 └──────────────────────────────────────────────────────────────────────────────────────────────────────┘

    dataset → dispatch → rollout → ready → form batch → reward → advantage → old log-probs → train
                 ↑                                                                             │
                 └──────────────────────────────── sync, version + 1 ──────────────────────────┘

It touches keys, lengths, ids, states and indices. What is to be done is decided in controller/decide.py; this file only does it.
What a transition did to what outlives a crash is committed before its actions are performed. Every expected failure of what it does is an
event again, with a timeout from the table in controller/waits.py; one that came of the end of a process is not told, but that end is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from ..compile.ir import Node
from ..errors import RlflowError, StartRefused, UsageError
from .batchscope import BatchScope, GroupsFailed
from .calls import BACKSTOP
from .controller import events as ev
from .controller.decide import decide
from .controller.ids import BatchId, EvaluationId
from .controller.journal import Change, TimelineRow
from .controller.state import State
from .controller.training import has_nothing_to_train
from .controller.waits import WaitKind
from .graph import GraphView
from .ledger.history import trained_group
from .ready import Landed, OfGroup
from .report import Report
from .sampling import DEATH_SECONDS, Sampling
from .staff import Staff
from .stall import Waits


class Ledger(Protocol):
    """What outlives the controller."""

    def commit(self, changes: Sequence[Change]) -> None: ...

    def trained(self, timeline: int, batch: int, groups: Sequence[tuple[int, ...]]) -> None: ...


class Loop:
    """One run, from the first process to `Finish`. state: new, or what a resume makes of a ledger. stall: seconds without an event."""

    def __init__(
        self, view: GraphView, staff: Staff, state: State, report: Report, ledger: Ledger, *, seed: int, stall: float = 300.0
    ) -> None:
        self.view, self.staff, self.caller, self.report, self.ledger = view, staff, staff.caller, report, ledger
        self.state, self.blocks, self.seed = state, staff.blocks, seed
        self.finish: asyncio.Future[ev.Finish] = asyncio.get_running_loop().create_future()
        self.sampling = Sampling(state, staff, self.blocks, self.tell, seed=seed, rows=report.run_dir.path / "rows")
        self.waits = Waits(stall)
        self._events: asyncio.Queue[ev.AnyEvent] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._void_timeouts = Counter[str]()  # that were told and not heard yet when their wait was over: the next wait has their name
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_workers: set[asyncio.Task[None]] = set()  # what is asked of those who are no engines
        self._evaluating: dict[EvaluationId, asyncio.Task[None]] = {}
        self._saving: dict[BatchId, asyncio.Task[None]] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> ev.Finish:
        """Until `decide` says Finish."""
        self._commit()  # what a resume changed
        self.sampling.sweep()
        self.tell(ev.RunStarted())
        worker, watch = asyncio.create_task(self._consume()), asyncio.create_task(self._watch())
        try:
            either: set[asyncio.Future[Any]] = {self.finish, worker}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()  # a fault of ours: raise it
            return self.finish.result()
        finally:
            for task in (worker, watch, *self._tasks):
                task.cancel()
            for timer in self._timers.values():
                timer.cancel()
            await asyncio.gather(worker, watch, *self._tasks, return_exceptions=True)

    @property
    def began(self) -> bool:
        """Whether everybody who is needed for a step has come up."""
        return self.state.workers_up and any(engine.start and engine.state != "down" for engine in self.state.fleet)

    def tell(self, event: ev.AnyEvent) -> None:
        self._events.put_nowait(event)

    def died(self, process: str, why: str) -> None:
        """A process is gone: an engine is down, which is its server and its rollout process, or a worker."""
        engine = self.staff.engine_of(process)
        self.report.screen.note(why.splitlines()[0])
        if engine is not None:
            self._spawn(self.staff.end_engine(engine))
            self.tell(ev.EngineDown(engine, self.state.engines[engine].start, why))
        else:
            self.tell(ev.TrainerDown(process, self.state.workers_start, why))

    async def _consume(self) -> None:
        while not self.finish.done():
            event = await self._events.get()
            if isinstance(event, ev.Timeout) and self._is_void(event.name):
                continue
            self.waits.heard()
            actions = decide(self.state, event)
            self._commit()
            for action in actions:
                self._perform(action)
            if isinstance(event, ev.Saved):
                self._tidy()

    def _tidy(self) -> None:
        """Of the checkpoints, keep those that are asked for. The others lose their names now, and are deleted beside the run."""
        unscored = {*self.state.evaluations_due, *(evaluation.version for evaluation in self.state.evaluations)}
        try:
            self.staff.deleter.delete(self.staff.retention.saved(self.state.saved, unscored))
        except OSError as error:
            self.report.screen.note(f"the checkpoints could not be tidied up: {error}")

    def _commit(self) -> None:
        if self.state.journal:
            self.ledger.commit(self.state.journal)
        for change in self.state.journal:
            if isinstance(change, TimelineRow):
                self.report.timeline(change.timeline, change.version)

    async def _watch(self) -> None:
        """Where nothing happens for long, say who waits for whom."""
        while True:
            await asyncio.sleep(self.waits.seconds_left())
            if (told := self.waits.stalled(self.state, self.caller.outstanding())) is not None:
                self.report.stalled(told)

    def _perform(self, action: ev.AnyAction) -> None:
        match action:
            case ev.Start():
                self._begin(action.engine, self._start(action))
            case ev.StartWorkers():
                self.staff.retention.rewound(self.state.timeline, self.state.published)
                for task in self._of_workers:
                    task.cancel()
                self._begin("", self._start_workers(action))
            case ev.Dispatch():
                self._spawn(self.sampling.dispatch(action))
            case ev.Abort(trajectory):
                self.sampling.abort(trajectory)
            case ev.Run():
                self._ask(self.sampling.hop(action))
            case ev.Train():
                self._ask(self._train(action))
            case ev.Sync():
                self._ask(self._sync(action))
            case ev.Evaluate(evaluation):
                self._evaluating[evaluation] = self._spawn(self._evaluate(evaluation, self._sinks_due(evaluation)))
            case ev.Void(evaluation):
                if (scoring := self._evaluating.pop(evaluation, None)) is not None:
                    scoring.cancel()
            case ev.Save():
                self._begin_save(action)
            case ev.Drop(group, reason, detail):
                self.sampling.forget([group.uid])
                self.report.dropped(group.uid, reason, detail)
            case ev.Recycle(uids):
                self.sampling.recycle(uids)
            case ev.Warn(what):
                self.report.screen.note(what)
            case ev.Arm(name, seconds):
                self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._ran_out, name)
                self.waits.begin(name)
            case ev.Disarm(name):
                if (timer := self._timers.pop(name, None)) is not None:
                    timer.cancel()
                else:
                    self._void_timeouts[name] += 1
                self.waits.end(name)
            case ev.Continue():
                self.sampling.go_on(action)
            case ev.Finish():
                self._tidy()
                self.finish.set_result(action)

    def _is_void(self, name: str) -> bool:
        if name not in self._void_timeouts:
            return False
        self._void_timeouts[name] -= 1
        self._void_timeouts = +self._void_timeouts
        return True

    def _ran_out(self, name: str) -> None:
        self._timers.pop(name)
        self.waits.end(name)
        self.tell(ev.Timeout(name))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ask(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Something that is void as soon as the workers are started anew."""
        task = self._spawn(job)
        self._of_workers.add(task)
        task.add_done_callback(self._of_workers.discard)
        return task

    def _begin(self, who: str, job: Coroutine[Any, Any, None]) -> None:
        """A start takes the place of one that is under way."""
        if (before := self._starting.get(who)) is not None:
            before.cancel()
        self._starting[who] = self._spawn(_after(before, job))

    def _begin_save(self, action: ev.Save) -> None:
        """One of the same version whose time is up is given up: both would write into one folder."""
        self._saving = {batch: task for batch, task in self._saving.items() if not task.done()}
        if (before := self._saving.get(action.batch)) is not None:
            before.cancel()
        self._saving[action.batch] = self._ask(self._save(action))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.finish.done():
            self.finish.set_exception(error)

    def _seconds(self, kind: WaitKind) -> float:
        """How long a call may take that belongs to such a wait: the wait runs out first, and `decide` says what then happens."""
        return self.state.config.seconds(kind) + BACKSTOP

    # --- processes ----------------------------------------------------------------------------------------------------------------
    async def _start(self, action: ev.Start) -> None:
        await asyncio.sleep(action.after)
        try:
            await self.staff.prepared.wait()
            capacity = await self.staff.start_engine(action.engine, self._seconds("engine start"))
        except RlflowError as error:
            if isinstance(error, StartRefused) and action.start == 1:
                raise  # it would be the same again
            self.tell(ev.EngineDown(action.engine, action.start, str(error)))
        else:
            rows = self.staff.rows[self.view.source.id]
            self.tell(ev.EngineUp(action.engine, action.start, capacity, rows))

    async def _start_workers(self, action: ev.StartWorkers) -> None:
        await self.staff.end_workers()
        await asyncio.sleep(action.after)
        try:
            await self.staff.start_workers(action.checkpoint, self._seconds("worker start"))
        except RlflowError as error:
            if isinstance(error, StartRefused | UsageError) and action.start == 1:
                raise  # it would be the same again
            self.tell(ev.TrainerDown("", action.start, str(error)))
        else:
            self.tell(ev.WorkersUp(action.start))

    # --- engines ------------------------------------------------------------------------------------------------------------------
    async def _sync(self, action: ev.Sync) -> None:
        sync, start = action.sync, time.monotonic()
        try:
            for node in self.view.syncs_to(self.staff.engines[sync.engine].id):
                call = self.staff.engine_call(node.id, sync.timeline, sync.version, sync.engine)
                done = await self.caller.on_owner(node, call, self._seconds("sync"))
                self.report.measured({f"{node.name}/{k}": v for k, v in done.metrics.items()})
        except RlflowError as error:
            if not await self._came_of_an_end(sync.engine):
                self.tell(ev.SyncFailed(sync, str(error)))
        else:
            self.report.took("sync", time.monotonic() - start)
            self.tell(ev.Synced(sync))

    def _sinks_due(self, evaluation: EvaluationId) -> list[Node]:
        return self.view.sinks_due(self.state.evaluations.get(evaluation, ()), at_the_end=has_nothing_to_train(self.state))

    async def _evaluate(self, evaluation: EvaluationId, sinks: Sequence[Node]) -> None:
        """All that is due, of the pinned version. The score is the reward of the pipeline's first evaluation."""
        found: list[tuple[Node, dict[str, float], float]] = []
        try:
            for node in sinks:
                start = time.monotonic()
                call = self.staff.engine_call(node.id, evaluation.timeline, evaluation.version, evaluation.engine)
                done = await self.caller.evaluate(node, evaluation.engine, call, self._seconds("evaluation"))
                found.append((node, done.metrics, time.monotonic() - start))
        except RlflowError as error:
            if not await self.staff.engine_ended(evaluation.engine, within=DEATH_SECONDS):
                self.tell(ev.EvaluationFailed(evaluation, str(error)))
        else:
            for node, numbers, seconds in found:
                self.report.evaluated(node.name, evaluation.version, numbers, seconds)
            score = next((numbers.get("reward") for node, numbers, _ in found if node is self.view.sinks[0]), None)
            if score is not None:
                self.staff.retention.scored(evaluation.timeline, evaluation.version, score)
            self.tell(ev.Evaluated(evaluation, score))
        finally:
            self._evaluating.pop(evaluation, None)

    async def _came_of_an_end(self, engine: str) -> bool:
        """Whether what went wrong between a worker and an engine came of the end of one of them."""
        engine_ended, workers_ended = await asyncio.gather(
            self.staff.engine_ended(engine, DEATH_SECONDS), self.staff.workers_ended(DEATH_SECONDS)
        )
        return engine_ended or workers_ended

    # --- the batch ----------------------------------------------------------------------------------------------------------------
    async def _train(self, action: ev.Train) -> None:
        batch, uids, start = action.batch, list(action.groups), time.monotonic()
        failed: dict[int, str] = {}
        while True:
            try:
                scope = await self._scope(action, failed)
                result = await scope.run()
                break
            except GroupsFailed as groups:
                failed |= groups.why
                for uid, why in groups.why.items():
                    self.tell(ev.GroupFailed(batch, uid, why))
                    uids.remove(uid)
                    self.sampling.forget([uid])
            except RlflowError as error:
                if not await self.staff.workers_ended(within=DEATH_SECONDS):
                    self.tell(ev.TrainFailed(batch, str(error)))
                return
        self.sampling.forget(uids)
        held, waiting = self.blocks.outstanding, self.sampling.ready.nbytes
        assert held == waiting, f"after batch {batch.batch} the pool holds {held} bytes, {waiting} of live groups: a block was not freed"
        self.report.trained(batch.batch, self.state, scope.landed, result, time.monotonic() - start)
        self.ledger.trained(batch.timeline, batch.batch, self._trained_groups(uids, scope.landed))
        self.tell(ev.Trained(batch, tuple((uid, *judged) for uid, judged in result.judged.items())))

    def _trained_groups(self, uids: Iterable[int], landed: Iterable[Landed]) -> list[tuple[int, ...]]:
        """As the history tells them: how many trajectories were trained, the oldest version that sampled them, how many were taken out."""
        counts = Counter(trajectory.uid for trajectory in landed)
        groups = {uid: self.state.groups[uid] for uid in uids if uid in self.state.groups}  # a rollback may have been faster
        oldest = {uid: min((span.version for t in group.left for span in t.spans), default=-1) for uid, group in groups.items()}
        taken_out = {uid: len(group.trajectories) - len(group.left) for uid, group in groups.items()}
        return [trained_group(uid, counts[uid], oldest.get(uid, -1), taken_out.get(uid, 0)) for uid in uids]

    async def _scope(self, action: ev.Train, failed: dict[int, str]) -> BatchScope:
        """The batch scope of what is left of a batch, its rows in the pool. Raises GroupsFailed for groups whose rows are lost."""
        landed, hops, lost = [], dict[int, list[OfGroup]](), dict[int, str]()
        for uid in action.groups:
            if uid in failed:
                continue
            try:
                rows, made = await self.sampling.of_group(uid, [t for t in action.trajectories if t.uid == uid], len(self.view.hops))
            except RlflowError as error:
                if await self.staff.workers_ended(within=DEATH_SECONDS):
                    raise
                lost[uid] = str(error)
                continue
            landed += rows
            for node, one in made.items():
                hops.setdefault(node, []).append(one)
        if lost:
            raise GroupsFailed(lost)
        timeout = self._seconds("train step")
        return BatchScope(self.view, self.caller, action.batch, landed, hops, self.blocks, seed=self.seed, timeout=timeout)

    async def _save(self, action: ev.Save) -> None:
        start = time.monotonic()
        try:
            await self.staff.save(action.batch.timeline, action.batch.batch + 1, self._seconds("save"))
        except (RlflowError, OSError) as error:
            if not await self.staff.workers_ended(within=DEATH_SECONDS):
                self.tell(ev.SaveFailed(action.batch, str(error)))
        else:
            self.report.took("save", time.monotonic() - start)
            self.tell(ev.Saved(action.batch))


async def _after(before: asyncio.Task[None] | None, job: Coroutine[Any, Any, None]) -> None:
    """`job`, when what it takes the place of has ended."""
    if before is not None:
        await asyncio.wait([before])
    await job
