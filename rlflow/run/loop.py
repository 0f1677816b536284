"""The run, in the controller process: events in, `decide`, actions out.

    workers ──Landed, Trained, Synced ...──▶ queue ──▶ decide(state, event) ──▶ actions ──▶ perform ──calls──▶ workers
                 ▲                                                                                               │
                 └───────────────────────────────────────────────────────────────────────────────────────────────┘

    dataset → dispatch → rollout → ready → form batch → reward → advantage → old log-probs → train
                 ↑                                                                             │
                 └──────────────────────────────── sync, version + 1 ──────────────────────────┘

It touches keys, lengths, ids, states and indices. What is to be done is decided in decide.py; this file only does it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from ..data.pool.protocol import Key
from ..errors import RlflowError
from .batchscope import BatchScope, Landed
from .controller import events as ev
from .controller.decide import decide
from .controller.ids import BatchId, GroupId, Span, TrajectoryId
from .controller.order import prompt_of
from .controller.state import Config, State
from .graph import GraphView
from .messages import Call, Done, Source
from .report import Report
from .staff import Staff


class Loop:
    """One run, from the first process to `Finish`."""

    def __init__(self, view: GraphView, staff: Staff, config: Config, report: Report, *, seed: int, dataset_rows: int) -> None:
        self.view, self.staff, self.caller, self.report = view, staff, staff.caller, report
        self.state, self.seed, self.dataset_rows = State(config), seed, dataset_rows
        self.finish: asyncio.Future[ev.Finish] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[ev.AnyEvent] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._landed: dict[TrajectoryId, Landed] = {}  # the ready buffer: where the rows of live trajectories lie
        self._hops: dict[tuple[int, int], tuple[Key, ...]] = {}  # (node, uid) -> what an operator of whole groups made before boarding
        self._aborted: set[TrajectoryId] = set()

    async def run(self) -> ev.Finish:
        """Until `decide` says Finish."""
        self.tell(ev.RunStarted())
        self.tell(ev.WorkersUp())
        worker = asyncio.create_task(self._consume())
        try:
            either: set[asyncio.Future[Any]] = {self.finish, worker}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()  # a fault of ours: raise it
            return self.finish.result()
        finally:
            for task in (worker, *self._tasks):
                task.cancel()
            for timer in self._timers.values():
                timer.cancel()
            await asyncio.gather(worker, *self._tasks, return_exceptions=True)

    def tell(self, event: ev.AnyEvent) -> None:
        self._events.put_nowait(event)

    def died(self, process: str, why: str) -> None:
        """A process is gone: an engine is down, or a worker."""
        engine = self.staff.engine_of(process)
        if engine is not None:
            self.tell(ev.EngineDown(engine, self.state.engines[engine].start, why))
        else:
            self.tell(ev.TrainerDown(process, why))

    async def _consume(self) -> None:
        while not self.finish.done():
            event = await self._events.get()
            for action in decide(self.state, event):
                self._perform(action)

    def _perform(self, action: ev.AnyAction) -> None:
        match action:
            case ev.Start():
                self._spawn(self._start(action))
            case ev.Dispatch():
                self._spawn(self._dispatch(action))
            case ev.Abort(trajectory):
                if trajectory not in self._landed:
                    self._aborted.add(trajectory)  # its rows are freed when they arrive
                self._forget([trajectory])
            case ev.Run():
                self._spawn(self._hop(action))
            case ev.Train():
                self._spawn(self._train(action))
            case ev.Sync():
                self._spawn(self._sync(action))
            case ev.Evaluate():
                self._spawn(self._evaluate(action))
            case ev.Save():
                self._spawn(self._save(action))
            case ev.Drop(group, reason, detail):
                self._forget([t for t in self._landed if t.uid == group.uid])
                self.report.dropped(group.uid, reason, detail)
            case ev.Arm(name, seconds):
                self._timers[name] = asyncio.get_running_loop().call_later(seconds, self.tell, ev.Timeout(name))
            case ev.Disarm(name):
                if (timer := self._timers.pop(name, None)) is not None:
                    timer.cancel()
            case ev.Finish():
                self.finish.set_result(action)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.finish.done():
            self.finish.set_exception(error)  # a fault of ours: every expected failure is an event

    # --- engines ------------------------------------------------------------------------------------------------------------------
    async def _start(self, action: ev.Start) -> None:
        await asyncio.sleep(action.after)
        try:
            capacity = await self.staff.start_engine(action.engine)
        except RlflowError as error:
            self.tell(ev.EngineDown(action.engine, action.start, str(error)))
        else:
            self.tell(ev.EngineUp(action.engine, action.start, capacity))

    async def _sync(self, action: ev.Sync) -> None:
        sync, engine = action.sync, self.staff.engine_id(action.sync.engine)
        try:
            start = time.monotonic()
            for node in self.view.syncs_to(engine):
                call = Call(self.caller.new_id(), node.id, sync.version, engine=engine, address=self.staff.address(sync.engine))
                done = await self.caller.on_owner(node, call)
                self.report.measured({f"{node.name}/{k}": v for k, v in done.metrics.items()})
            self.report.took("sync", time.monotonic() - start)
        except RlflowError as error:
            self.tell(ev.SyncFailed(sync, str(error)))
        else:
            self.tell(ev.Synced(sync))

    async def _evaluate(self, action: ev.Evaluate) -> None:
        evaluation = action.evaluation
        try:
            for node in self.view.sinks:
                if evaluation.version % node.params["every"] and evaluation.version <= self.state.config.last:
                    continue  # another one's turn
                start = time.monotonic()
                done = await self.caller.rollout(evaluation.engine, self._engine_call(node.id, evaluation.version, evaluation.engine))
                self.report.evaluated(node.name, evaluation.version, done.metrics, time.monotonic() - start)
        except RlflowError as error:
            self.tell(ev.EvaluationFailed(evaluation, str(error)))
        else:
            self.tell(ev.Evaluated(evaluation))

    def _engine_call(self, node: int, version: int, engine: str, prompt: tuple[int, int, int] | None = None) -> Call:
        address = self.staff.address(engine)
        return Call(self.caller.new_id(), node, version, prompt=prompt, engine=self.staff.engine_id(engine), address=address)

    # --- the stream ---------------------------------------------------------------------------------------------------------------
    async def _dispatch(self, action: ev.Dispatch) -> None:
        trajectory = action.trajectory
        _, row = prompt_of(trajectory.uid, self.dataset_rows, self.seed)
        prompt = (row, trajectory.uid, trajectory.traj_uid)
        call = self._engine_call(self.view.sampler.id, action.version_tag, action.engine, prompt)
        try:
            done = await self.caller.rollout(action.engine, call)
        except RlflowError as error:
            self.tell(ev.Failed(trajectory, str(error)))
        else:
            self._land(trajectory, done)

    def _land(self, trajectory: TrajectoryId, done: Done) -> None:
        assert done.key is not None
        self.report.put(done)
        if trajectory in self._aborted:
            self._aborted.discard(trajectory)
            self._free([done.key])
            return
        self._landed[trajectory] = Landed(trajectory.uid, done.key, done.lengths, done.metrics)
        self.tell(ev.Landed(trajectory, len(done.lengths), tuple(Span(*span) for span in done.spans)))

    async def _hop(self, action: ev.Run) -> None:
        """An operator of a whole group before boarding; a filter that keeps no row says drop."""
        assert isinstance(action.unit, GroupId)
        node, uid = self.view.hop(action.operator), action.unit.uid
        blocks = tuple(self._landed[t].key for t in sorted(self._landed) if t.uid == uid)
        made = [Source(n, keys) for (n, u), keys in self._hops.items() if u == uid]
        try:
            sources = (Source(self.view.sampler.id, blocks), *made)
            done = await self.caller.call(node, 0, Call(self.caller.new_id(), node.id, sources=sources))
        except RlflowError as error:
            self.tell(ev.Ran(action.operator, action.unit, "drop", str(error)))
            return
        if done.key is not None:
            self.report.put(done)
            self._hops[node.id, uid] = (done.key,)
        keep = node.rows != "filter" or done.metrics["rows"] > 0
        self.tell(ev.Ran(action.operator, action.unit, "keep" if keep else "drop", "" if keep else f"`{node.name}` keeps no row of it"))

    # --- the batch ----------------------------------------------------------------------------------------------------------------
    async def _train(self, action: ev.Train) -> None:
        landed = [self._landed[t] for t in action.trajectories]
        kept = [node.id for node in self.view.hops if node.rows == "keep"]
        hops = {node: tuple(key for uid in action.groups for key in self._hops[node, uid]) for node in kept}
        scope = BatchScope(self.view, self.caller, action.batch.batch, landed, hops, self.seed)
        start = time.monotonic()
        try:
            result = await scope.run()
        except ExceptionGroup as errors:
            if not isinstance(error := _first(errors), RlflowError):
                raise
            self.tell(ev.TrainFailed(action.batch, str(error)))
            return
        for done in result.answers:
            self.report.put(done)
        self._free(key for done in result.answers if (key := done.key) is not None)
        self._forget(action.trajectories)
        self.report.trained(action.batch.batch, self.state, landed, result, time.monotonic() - start)
        self.tell(ev.Trained(action.batch))

    async def _save(self, action: ev.Save) -> None:
        try:
            start = time.monotonic()
            await self.staff.save(action.batch.batch + 1)
            self.report.took("save", time.monotonic() - start)
        except (RlflowError, OSError) as error:
            self.tell(ev.SaveFailed(BatchId(action.batch.timeline, action.batch.batch), str(error)))
        else:
            self.tell(ev.Saved(action.batch))

    # --- rows ---------------------------------------------------------------------------------------------------------------------
    def _forget(self, trajectories: Iterable[TrajectoryId]) -> None:
        """Their rows will not be read again."""
        gone = [(t, self._landed.pop(t)) for t in tuple(trajectories) if t in self._landed]
        self._free(landed.key for _, landed in gone)
        live = {t.uid for t in self._landed}
        for node, uid in [key for key in self._hops if key[1] not in live]:
            self._free(self._hops.pop((node, uid)))

    def _free(self, keys: Iterable[Key]) -> None:
        freed = tuple(keys)
        self.report.freed(freed)
        self.caller.free(freed)


def _first(error: BaseException) -> BaseException:
    """The first error of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
