"""The run, in the controller process: events in, `decide`, actions out.

    workers ──Landed, Trained, Synced ...──▶ queue ──▶ decide(state, event) ──▶ actions ──▶ perform ──calls──▶ workers
                 ▲                                                                                               │
                 └───────────────────────────────────────────────────────────────────────────────────────────────┘

    dataset → dispatch → rollout → ready → form batch → reward → advantage → old log-probs → train
                 ↑                                                                             │
                 └──────────────────────────────── sync, version + 1 ──────────────────────────┘

It touches keys, lengths, ids, states and indices. What is to be done is decided in controller/decide.py; this file only does it.
Every expected failure of what it does is an event again, with a timeout from the table in controller/waits.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from ..compile.ir import Node
from ..data.pool.protocol import Key
from ..errors import DataError, RlflowError, StartRefused
from .batchscope import BatchScope
from .calls import BACKSTOP
from .controller import events as ev
from .controller.decide import decide
from .controller.ids import EvaluationId, GroupId, Span, TrajectoryId
from .controller.order import prompt_of
from .controller.state import Config, State
from .controller.training import has_nothing_to_train
from .controller.waits import WaitKind
from .graph import GraphView
from .messages import Call, Done, Source
from .ready import Landed, Ready
from .report import KEEPS_NO_ROW, Report
from .staff import Staff


class Loop:
    """One run, from the first process to `Finish`."""

    def __init__(self, view: GraphView, staff: Staff, config: Config, report: Report, *, seed: int) -> None:
        self.view, self.staff, self.caller, self.report = view, staff, staff.caller, report
        self.state, self.seed = State(config), seed
        self.finish: asyncio.Future[ev.Finish] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[ev.AnyEvent] = asyncio.Queue()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._evaluating: dict[EvaluationId, asyncio.Task[None]] = {}
        self._ready = Ready()
        self._aborted: set[TrajectoryId] = set()  # given up while they ran: their rows are freed when they arrive

    async def run(self) -> ev.Finish:
        """Until `decide` says Finish."""
        self.tell(ev.RunStarted())
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

    @property
    def began(self) -> bool:
        """Whether everybody who is needed for a step has come up."""
        return self.state.workers_up and any(engine.start and engine.state != "down" for engine in self.state.fleet)

    def tell(self, event: ev.AnyEvent) -> None:
        self._events.put_nowait(event)

    def died(self, process: str, why: str) -> None:
        """A process is gone: an engine is down, which is its server and its rollout process, or a worker."""
        engine = self.staff.engine_of(process)
        if engine is not None:
            self._spawn(self.staff.end_engine(engine))
            self.tell(ev.EngineDown(engine, self.state.engines[engine].start, why))
        else:
            self.tell(ev.TrainerDown(process, self.state.workers_start, why))

    async def _consume(self) -> None:
        while not self.finish.done():
            event = await self._events.get()
            for action in decide(self.state, event):
                self._perform(action)

    def _perform(self, action: ev.AnyAction) -> None:
        match action:
            case ev.Start():
                self._spawn(self._start(action))
            case ev.StartWorkers(start):
                self.tell(ev.WorkersUp(start))  # they are up before the loop
            case ev.Dispatch():
                self._spawn(self._dispatch(action))
            case ev.Abort(trajectory):
                if trajectory not in self._ready:
                    self._aborted.add(trajectory)
                self.free(self._ready.forget(trajectory))
            case ev.Run():
                self._spawn(self._hop(action))
            case ev.Train():
                self._spawn(self._train(action))
            case ev.Sync():
                self._spawn(self._sync(action))
            case ev.Evaluate(evaluation):
                self._evaluating[evaluation] = self._spawn(self._evaluate(evaluation, self._sinks_due(evaluation)))
            case ev.Void(evaluation):
                if (task := self._evaluating.pop(evaluation, None)) is not None:
                    task.cancel()
            case ev.Save():
                self._spawn(self._save(action))
            case ev.Drop(group, reason, detail):
                self.free(self._ready.forget_groups([group.uid]))
                self.report.dropped(group.uid, reason, detail)
            case ev.Recycle(uids):
                self.free(self._ready.forget_groups(uids))
            case ev.Warn(what):
                self.report.screen.note(what)
            case ev.Arm(name, seconds):
                self._timers[name] = asyncio.get_running_loop().call_later(seconds, self.tell, ev.Timeout(name))
            case ev.Disarm(name):
                if (timer := self._timers.pop(name, None)) is not None:
                    timer.cancel()
            case ev.Finish():
                self.finish.set_result(action)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.finish.done():
            self.finish.set_exception(error)

    def _seconds(self, kind: WaitKind) -> float:
        """How long a call may take that belongs to such a wait: the wait runs out first, and `decide` says what then happens."""
        return self.state.config.seconds(kind) + BACKSTOP

    # --- engines ------------------------------------------------------------------------------------------------------------------
    async def _start(self, action: ev.Start) -> None:
        await asyncio.sleep(action.after)
        try:
            capacity = await self.staff.start_engine(action.engine, self._seconds("engine start"))
        except StartRefused:
            raise
        except RlflowError as error:
            self.tell(ev.EngineDown(action.engine, action.start, str(error)))
        else:
            rows = self.staff.rows[self.view.source.id]
            self.tell(ev.EngineUp(action.engine, action.start, capacity, rows))

    async def _sync(self, action: ev.Sync) -> None:
        sync, engine, start = action.sync, self.staff.engine_id(action.sync.engine), time.monotonic()
        try:
            for node in self.view.syncs_to(engine):
                call = Call(self.caller.new_id(), node.id, sync.version, engine=engine, address=self.staff.address(sync.engine))
                done = await self.caller.on_owner(node, call, self._seconds("sync"))
                self.report.measured({f"{node.name}/{k}": v for k, v in done.metrics.items()})
        except RlflowError as error:
            self.tell(ev.SyncFailed(sync, str(error)))
        else:
            self.report.took("sync", time.monotonic() - start)
            self.tell(ev.Synced(sync))

    def _sinks_due(self, evaluation: EvaluationId) -> list[Node]:
        return self.view.sinks_due(self.state.evaluations[evaluation], at_the_end=has_nothing_to_train(self.state))

    async def _evaluate(self, evaluation: EvaluationId, sinks: Sequence[Node]) -> None:
        """All that is due, of the pinned version. The score is the reward of the pipeline's first evaluation."""
        found: list[tuple[Node, dict[str, float], float]] = []
        try:
            for node in sinks:
                start = time.monotonic()
                call = self._engine_call(node.id, evaluation.version, evaluation.engine)
                done = await self.caller.rollout(node, evaluation.engine, call, self._seconds("evaluation"))
                found.append((node, done.metrics, time.monotonic() - start))
        except RlflowError as error:
            self.tell(ev.EvaluationFailed(evaluation, str(error)))
        else:
            for node, numbers, seconds in found:
                self.report.evaluated(node.name, evaluation.version, numbers, seconds)
            rewards = {node.id: numbers.get("reward") for node, numbers, _ in found}
            self.tell(ev.Evaluated(evaluation, rewards.get(self.view.sinks[0].id)))
        finally:
            self._evaluating.pop(evaluation, None)

    def _engine_call(self, node: int, version: int, engine: str, prompt: tuple[int, int, int] | None = None) -> Call:
        address = self.staff.address(engine)
        return Call(self.caller.new_id(), node, version, prompt=prompt, engine=self.staff.engine_id(engine), address=address)

    # --- the stream ---------------------------------------------------------------------------------------------------------------
    async def _dispatch(self, action: ev.Dispatch) -> None:
        trajectory = action.trajectory
        _, row = prompt_of(trajectory.uid, self.staff.rows[self.view.source.id], self.seed)
        prompt = (row, trajectory.uid, trajectory.traj_uid)
        sampler = self.view.sampler
        call = self._engine_call(sampler.id, action.version_tag, action.engine, prompt)
        try:
            done = await self.caller.rollout(sampler, action.engine, call, self._seconds("trajectory"))
        except RlflowError as error:
            self._aborted.discard(trajectory)
            self.tell(ev.Failed(trajectory, str(error)))
        else:
            self._land(trajectory, done)

    def _land(self, trajectory: TrajectoryId, done: Done) -> None:
        assert done.key is not None
        self.put(done)
        if trajectory in self._aborted:
            self._aborted.discard(trajectory)
            self.free([done.key])
            return
        self._ready.land(trajectory, Landed(trajectory.uid, done.key, done.lengths, done.metrics))
        self.tell(ev.Landed(trajectory, len(done.lengths), tuple(Span(*span) for span in done.spans)))

    async def _hop(self, action: ev.Run) -> None:
        """An operator of a whole group before boarding; an error or a filter that keeps no row drops the group.

        Raises DataError for a filter that keeps some rows of a group and not others: advantages would be taken of a part of it.
        """
        assert isinstance(action.unit, GroupId)
        node, uid = self.view.hop(action.operator), action.unit.uid
        landed = self._ready.group(uid)
        rows = Source(self.view.sampler.id, tuple(t.key for t in landed))
        made = [Source(writer, (key,)) for writer, key in self._ready.made(uid).items()]
        try:
            call = Call(self.caller.new_id(), node.id, sources=(rows, *made))
            done = await self.caller.call(node, 0, call, self._seconds("operator"))
        except RlflowError as error:
            self.tell(ev.Ran(action.operator, action.unit, "drop", str(error)))
            return
        self._keep_made(uid, node.id, done)
        kept, given = int(done.metrics.get("rows", 0)), sum(len(t.lengths) for t in landed)
        if node.rows == "filter" and kept not in (0, given):
            raise DataError(f"`{node.name}` keeps {kept} of the {given} rows of prompt {uid}: a filter per group keeps all of one or none")
        if node.rows == "filter" and not kept:
            self.tell(ev.Ran(action.operator, action.unit, "drop", f"`{node.name}` {KEEPS_NO_ROW}"))
        else:
            self.tell(ev.Ran(action.operator, action.unit))

    def _keep_made(self, uid: int, node: int, done: Done) -> None:
        """The block of an operator of a whole group; nobody reads it if the group was dropped while the operator ran."""
        if done.key is None:
            return
        self.put(done)
        if self._ready.group(uid):
            self._ready.put(uid, node, done.key)
        else:
            self.free([done.key])

    # --- the batch ----------------------------------------------------------------------------------------------------------------
    async def _train(self, action: ev.Train) -> None:
        landed, start = [self._ready[t] for t in action.trajectories], time.monotonic()
        made = [self._ready.made(uid) for uid in action.groups]
        hops = {node: tuple(of[node] for of in made) for node in made[0]}
        timeout = self._seconds("train step")
        scope = BatchScope(self.view, self.caller, action.batch.batch, landed, hops, self, seed=self.seed, timeout=timeout)
        try:
            result = await scope.run()
        except ExceptionGroup as errors:
            if not isinstance(error := _first(errors), RlflowError):
                raise
            self.tell(ev.TrainFailed(action.batch, str(error)))
            return
        self.free(self._ready.forget_groups(action.groups))
        held, waiting = self.report.outstanding, self._ready.nbytes
        assert held == waiting, (
            f"after batch {action.batch.batch} the pool holds {held} bytes, {waiting} of live groups: a block was not freed"
        )
        self.report.trained(action.batch.batch, self.state, landed, result, time.monotonic() - start)
        self.tell(ev.Trained(action.batch))

    async def _save(self, action: ev.Save) -> None:
        start = time.monotonic()
        try:
            await self.staff.save(action.batch.batch + 1)
        except (RlflowError, OSError) as error:
            self.tell(ev.SaveFailed(action.batch, str(error)))
        else:
            self.report.took("save", time.monotonic() - start)
            self.tell(ev.Saved(action.batch))

    # --- blocks -------------------------------------------------------------------------------------------------------------------
    def put(self, done: Done) -> None:
        """A call has left a block in the pool."""
        self.report.put(done)

    def free(self, keys: Iterable[Key]) -> None:
        """Their blocks will not be read again."""
        freed = tuple(keys)
        self.report.freed(freed)
        self.caller.free(freed)


def _first(error: BaseException) -> BaseException:
    """The first error of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
