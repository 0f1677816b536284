"""Who works in a run, and how they are started.

    first     host, and every dp rank of every worker with an engine     they make the tiny model, if the run needs one
    then      for each rollout engine: its HTTP server and its rollout process

A rollout engine is a worker with a `server`, each of its replicas one: `engine`, or `engine.0`, `engine.1`, ... Everything else is one
process a rank.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..compile import ir
from ..data.pool.arena import ArenaHandle, ShmArena
from ..errors import UsageError
from ..language.worker import Site, Worker
from ..modules import make_worker
from .calls import BACKSTOP, Caller, engine_names, process_name, rollout_name
from .controller.waits import WAITS
from .graph import GraphView
from .launch import Fleet
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


class Staff:
    """The processes of one run by role. `rows`: prompts of each data set, known once a rollout process is up."""

    def __init__(self, view: GraphView, run_dir: RunDir, fleet: Fleet, around: Surroundings) -> None:
        self.view, self.run_dir, self.fleet, self.around = view, run_dir, fleet, around
        self.workers: dict[int, Worker] = {w.id: make_worker(w) for w in view.graph.workers}
        used = {n.worker for n in view.needed if n.worker is not None} | {n.fills for n in view.syncs}
        servers = {w.id for w in view.graph.workers if w.id in used and self._argv(w, w.name, Path("?")) is not None}
        self.engines = {name: w for w in view.graph.workers if w.id in servers for name in engine_names(w)}
        self.trainers = [w for w in view.graph.workers if w.id in used - servers]
        ranks = [process_name(self.workers[w.id], rank) for w in self.trainers for rank in range(w.dp_size)]
        lanes = [HOST, *ranks, *map(rollout_name, self.engines)]
        clash = {name for name in lanes if lanes.count(name) > 1} | {name for name in self.engines if name in lanes}
        if clash:
            raise UsageError(f"two processes would be called {sorted(clash)}: rename a worker")
        self.arena = ShmArena.create(lanes, around.pool_bytes)
        self.peers: dict[str, Peer] = {}
        self.caller = Caller(self.peers, self.workers, lanes)
        self.rows: dict[int, int] = {}
        self._addresses: dict[str, str] = {}

    # --- start --------------------------------------------------------------------------------------------------------------------
    async def start_workers(self) -> None:
        """Host and trainers, all at once; then the loads of the plan."""
        jobs = [self._start(HOST, "host", None, 0, 1)]
        for worker in self.trainers:
            rendezvous = f"file://{self.run_dir.path}/sites/{worker.name}.rendezvous" if worker.dp_size > 1 else ""
            for rank in range(worker.dp_size):
                name = process_name(self.workers[worker.id], rank)
                jobs.append(self._start(name, "worker", worker, rank, worker.dp_size, rendezvous))
        await asyncio.gather(*jobs)
        await self.caller.everywhere(self.view.loads, WAITS["worker start"].seconds)

    async def start_engine(self, name: str) -> int:
        """An engine's server and its rollout process, unless they are up; how many trajectories it can run at once."""
        engine = self.engines[name]
        if name in self._addresses:
            return self.workers[engine.id].capacity
        ready = self.run_dir.path / "sites" / f"{name}.ready.json"
        ready.unlink(missing_ok=True)
        argv = self._argv(engine, name, ready)
        assert argv is not None
        address, _ = await asyncio.gather(
            self.fleet.start_server(name, [*argv, "--parent-pid", str(os.getpid())], ready),
            self._start(rollout_name(name), "rollout", engine, 0, 1),
        )
        self._addresses[name] = address
        return self.workers[engine.id].capacity

    async def _start(self, name: str, role: str, worker: ir.Worker | None, rank: int, dp_size: int, rendezvous: str = "") -> None:
        file = SiteFile(
            name=name,
            role=role,  # type: ignore[arg-type]
            worker=worker.id if worker else None,
            rank=rank,
            dp_size=dp_size,
            seed=self.around.seed,
            threads=self.workers[worker.id].capacity if worker else 1,
            plan=str(self.around.plan),
            modules=self.around.modules,
            run_dir=str(self.run_dir.path),
            socket=str(self.fleet.socket),
            parent=os.getpid(),
            arena=self.arena_handle,
            rendezvous=rendezvous,
        )
        path = self.run_dir.path / "sites" / f"{name}.json"
        file.write(path)
        hello, self.peers[name] = await self.fleet.start_worker(name, path)
        self.peers[name].late = self.caller.free_late
        self.rows |= hello.rows

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

    def engine_id(self, name: str) -> int:
        return self.engines[name].id

    def address(self, name: str) -> str:
        return self._addresses[name]

    # --- checkpoints ----------------------------------------------------------------------------------------------------------------
    def checkpoint(self, version: int) -> Path:
        return self.run_dir.path / "checkpoints" / f"step-{version:06d}"

    def trained(self) -> list[ir.Worker]:
        """Workers whose weights change."""
        owners = {feedback.owner for feedback in self.view.graph.feedbacks}
        return [worker for worker in self.trainers if worker.id in owners]

    async def save(self, version: int) -> None:
        """Every trained worker writes its checkpoint; the folder gets its name when all are complete."""
        folder = self.checkpoint(version)
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        jobs = [
            self.caller.save(worker.id, rank, str(unfinished / worker.name), WAITS["save"].seconds + BACKSTOP)
            for worker in self.trained()
            for rank in range(worker.dp_size)
        ]
        unfinished.mkdir(parents=True, exist_ok=True)
        await asyncio.gather(*jobs)
        unfinished.rename(folder)

    def newest_checkpoint(self) -> Path | None:
        found = sorted(p for p in (self.run_dir.path / "checkpoints").iterdir() if p.name.startswith("step-"))
        return found[-1] if found else None


def socket_path(run_dir: Path) -> Path:
    """Where the workers call back: in the run's folder, unless that is too long for a Unix socket (107 bytes)."""
    path = run_dir / "sites" / "controller.sock"
    return path if len(os.fsencode(path)) <= 107 else Path(tempfile.mkdtemp(prefix="rlflow-")) / "controller.sock"
