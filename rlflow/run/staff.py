"""Who works in a run, and how they are started.

    first     host, and every dp rank of every worker with an engine     they make the tiny model, if the run needs one
    then      for each rollout engine: its HTTP server and its rollout process

A rollout engine is a worker with a `server`, each of its replicas one: `engine`, or `engine.0`, `engine.1`, ... Everything else is one
process a rank.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compile import ir
from ..data.pool.arena import ArenaHandle, ShmArena
from ..errors import EngineError, UsageError
from ..language.worker import Site, Worker
from ..modules import make_worker
from . import checkpoints
from .blocks import Blocks
from .calls import Caller, engine_names, process_name, rollout_name
from .deleting import Deleter
from .graph import GraphView
from .launch import Fleet
from .messages import Call, Free
from .retention import Retention
from .rundir import RunDir
from .site import SiteFile
from .transport import Peer

HOST = "host"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What every process is told besides its own name."""

    seed: int
    modules: tuple[tuple[str, str], ...]
    plan: Path
    pool_bytes: int | None
    turn_seconds: float
    keep: int = 0
    keep_best: bool = False


class Staff:
    """The processes of one run by role, started and started again.

    prepared: set when the trainers have come up once, who make the tiny model if the run needs one: engines are started after it.
    rows: prompts of each data set, known once a rollout process is up. blocks: what lies in their lanes and will be read again.
    """

    def __init__(self, view: GraphView, run_dir: RunDir, fleet: Fleet, around: Surroundings) -> None:
        self.view, self.run_dir, self.fleet, self.around = view, run_dir, fleet, around
        self.retention = Retention(run_dir.path / "checkpoints", keep=around.keep, keep_best=around.keep_best)
        self.deleter = Deleter()
        self.workers: dict[int, Worker] = {w.id: make_worker(w) for w in view.graph.workers}
        used = {n.worker for n in view.needed if n.worker is not None} | {n.fills for n in view.syncs}
        servers = {w.id for w in view.graph.workers if w.id in used and self._argv(w, w.name, Path("?")) is not None}
        self.engines = {name: w for w in view.graph.workers if w.id in servers for name in engine_names(w)}
        self.trainers = [w for w in view.graph.workers if w.id in used - servers]
        ranks = [name for worker in self.trainers for name in self._ranks(worker)]
        lanes = [HOST, *ranks, *map(rollout_name, self.engines)]
        clash = {name for name in lanes if lanes.count(name) > 1} | {name for name in self.engines if name in lanes}
        if clash:
            raise UsageError(f"two processes would be called {sorted(clash)}: rename a worker")
        self.arena = ShmArena.create(lanes, around.pool_bytes)
        self.peers: dict[str, Peer] = {}
        self.caller = Caller(self.peers, self.workers, lanes)
        self.blocks = Blocks(self.caller.free)
        self.prepared = asyncio.Event()
        self.rows: dict[int, int] = {}
        self._written: set[int] = set()  # lanes that have or had a writer
        self._addresses: dict[str, str] = {}

    # --- start --------------------------------------------------------------------------------------------------------------------
    async def start_workers(self, version: int | None, timeout: float) -> None:
        """Host and trainers, all at once, in the place of those there were; then the loads of the plan.

        version: of the checkpoint that trained workers go on from; None: from what they load. timeout: of each process, in seconds.
        Raises UsageError without that checkpoint; StartRefused, WorkerDied or WaitTimeout of the first that does not start.
        """
        checkpoint = self.saved_checkpoint(version)
        await self.end_workers()
        jobs = [self._start(HOST, "host", None, timeout)]
        restored = {worker.id for worker in self.trained()} if checkpoint else set[int]()
        for worker in self.trainers:
            rendezvous = self.run_dir.path / "sites" / f"{worker.name}.rendezvous"
            rendezvous.unlink(missing_ok=True)  # of those who met there before
            more = {
                "dp_size": worker.dp_size,
                "rendezvous": f"file://{rendezvous}" if worker.dp_size > 1 else "",
                "checkpoint": str(checkpoint / worker.name) if checkpoint and worker.id in restored else "",
            }
            jobs += [self._start(name, "worker", worker, timeout, rank=rank, **more) for rank, name in enumerate(self._ranks(worker))]
        await _all(jobs)
        await self.caller.everywhere(self.view.loads, timeout)
        self.prepared.set()

    async def end_workers(self) -> None:
        await self.fleet.end(self._others)

    @property
    def _others(self) -> list[str]:
        """Who is no engine."""
        return [HOST, *(name for worker in self.trainers for name in self._ranks(worker))]

    async def start_engine(self, name: str, timeout: float) -> int:
        """An engine's server and its rollout process, in the place of those there were; how many trajectories it can run at once.

        Raises StartRefused, WorkerDied, WaitTimeout or EngineError.
        """
        await self.end_engine(name)
        engine, ready = self.engines[name], self.run_dir.path / "sites" / f"{name}.ready.json"
        ready.unlink(missing_ok=True)
        argv = self._argv(engine, name, ready)
        assert argv is not None

        async def serve() -> None:
            self._addresses[name] = await self.fleet.start_server(name, [*argv, "--parent-pid", str(os.getpid())], ready, timeout)

        await _all([serve(), self._start(rollout_name(name), "rollout", engine, timeout)])
        await self.caller.abort_all(name, engine.id, self._addresses[name], timeout)
        return self.workers[engine.id].capacity

    async def end_engine(self, name: str) -> None:
        """One is of no use without the other."""
        self._addresses.pop(name, None)
        await self.fleet.end([name, rollout_name(name)])

    async def _start(self, name: str, role: str, worker: ir.Worker | None, timeout: float, **more: Any) -> None:
        lane = self.caller.lanes.index(name)
        live = self.blocks.of_lane(lane) if lane in self._written else None
        rank: dict[str, Any] = {"rank": 0, "dp_size": 1} | more
        file = SiteFile(
            **rank,
            name=name,
            role=role,  # type: ignore[arg-type]
            worker=worker.id if worker else None,
            seed=self.around.seed,
            threads=self.workers[worker.id].capacity * worker.replicas if worker else 1,
            turn_seconds=self.around.turn_seconds,
            plan=str(self.around.plan),
            modules=self.around.modules,
            run_dir=str(self.run_dir.path),
            socket=self.fleet.address,
            parent=os.getpid(),
            arena=self.arena_handle,
            live=live,
        )
        path = self.run_dir.path / "sites" / f"{name}.json"
        file.write(path)
        self._written.add(lane)
        hello, peer = await self.fleet.start_worker(name, path, timeout)
        if freed := set(live or ()) - set(self.blocks.of_lane(lane)):  # while nobody was there to be told
            peer.send(Free(tuple(freed)))
        peer.late = self.caller.free_late
        if (before := self.peers.get(name)) is not None:  # who is counted on
            peer.bytes_in, peer.bytes_out = peer.bytes_in + before.bytes_in, peer.bytes_out + before.bytes_out
        self.peers[name] = peer
        self.rows |= hello.rows

    def _ranks(self, worker: ir.Worker) -> list[str]:
        return [process_name(self.workers[worker.id], rank) for rank in range(worker.dp_size)]

    @property
    def arena_handle(self) -> ArenaHandle:
        return self.arena.handle()

    def _argv(self, worker: ir.Worker, name: str, ready_file: Path) -> list[str] | None:
        site = Site(name=name, rank=0, dp_size=1, run_dir=self.run_dir.path, seed=self.around.seed, rendezvous="")
        return self.workers[worker.id].server(site, ready_file)

    # --- who is who -----------------------------------------------------------------------------------------------------------------
    def engine_of(self, process: str) -> str | None:
        """The engine that a process belongs to: its server, or its rollout process."""
        return next((name for name in self.engines if process in (name, rollout_name(name))), None)

    async def engine_ended(self, name: str, within: float) -> bool:
        """Whether its server or its rollout process ends within so many seconds, or has."""
        return await self.fleet.ended([name, rollout_name(name)], within)

    async def workers_ended(self, within: float) -> bool:
        """Whether one of the others ends within so many seconds, or has."""
        return await self.fleet.ended(self._others, within)

    def address(self, engine: str) -> str | None:
        """Of its server; None for one that is down."""
        return self._addresses.get(engine)

    def engine_call(self, node: int, timeline: int, version: int, engine: str, **more: Any) -> Call:
        """A call about weights of an engine. Raises EngineError for one that is down."""
        address = self._addresses.get(engine)
        if address is None:
            raise EngineError(f"engine `{engine}` is down")
        return Call(self.caller.new_id(), node, version, timeline=timeline, engine=self.engines[engine].id, address=address, **more)

    # --- checkpoints ----------------------------------------------------------------------------------------------------------------
    def trained(self) -> list[ir.Worker]:
        """Workers whose weights change."""
        owners = {feedback.owner for feedback in self.view.graph.feedbacks}
        return [worker for worker in self.trainers if worker.id in owners]

    async def save(self, timeline: int, version: int, timeout: float) -> None:
        """Every trained worker writes its checkpoint; the folder gets its name when all are complete and on the disk.

        One of that version is of a timeline that was left: no ledger goes on from it, and it is replaced.
        """
        folder = self.retention.path(version)
        building = folder.with_name(f".{folder.name}.unfinished")
        await asyncio.to_thread(checkpoints.clear, building)
        jobs = [
            self.caller.save(worker.id, rank, str(building / worker.name), timeout)
            for worker in self.trained()
            for rank in range(worker.dp_size)
        ]
        await asyncio.gather(*jobs)
        await asyncio.to_thread(checkpoints.finish, building, folder, timeline, version, [worker.name for worker in self.trained()])

    def saved_checkpoint(self, version: int | None) -> Path | None:
        """The folder that a run goes on from. Raises UsageError for one that is not there, whole."""
        return None if version is None else checkpoints.check(self.retention.path(version), version, [w.name for w in self.trained()])


async def _all(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Raises what the first of them raised; the others are given up then."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
