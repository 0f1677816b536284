"""Calls to worker processes by node and rank, each a wait with a name and a timeout."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping

from ..compile import ir
from ..compile.ir import Node
from ..data.pool.protocol import Key
from ..errors import WaitTimeout
from ..language.worker import Worker
from .messages import Abort, AbortAll, Call, Done, Free, Restore, Save
from .stall import Outstanding
from .transport import Peer

BACKSTOP = 60.0  # seconds that a call outlives the wait of the controller it belongs to: what then happens is the table's to say (waits.py)


class Caller:
    """The worker processes of a run. peers: by process name; lanes: process names by the number of their lane in the pool."""

    def __init__(self, peers: Mapping[str, Peer], workers: Mapping[int, Worker], lanes: list[str]) -> None:
        self.peers, self.workers, self.lanes = peers, dict(workers), lanes
        self._ids = itertools.count(1)

    def new_id(self) -> int:
        return next(self._ids)

    def ranks(self, node: Node) -> int:
        return 1 if node.worker is None else self.workers[node.worker].dp_size

    def process(self, worker: int | None, rank: int = 0) -> Peer:
        return self.peers["host" if worker is None else process_name(self.workers[worker], rank)]

    async def call(self, node: Node, rank: int, call: Call, timeout: float) -> Done:
        return await self.process(node.worker, rank).call(call, what=f"`{node.name}`", timeout=timeout)

    async def rollout(self, node: Node, engine: str, call: Call, timeout: float, turned: Callable[[int], None] | None = None) -> Done:
        """In the rollout process beside an engine. turned: is given the turns that the trajectory is ready for."""
        return await self.rollout_process(engine).call(call, what=f"`{node.name}`", timeout=timeout, turned=turned)

    async def evaluate(self, node: Node, engine: str, call: Call, timeout: float) -> Done:
        """In the same process; whoever is cancelled while waiting for it, or waits in vain, has its requests ended on the engine."""
        process = self.rollout_process(engine)
        try:
            return await process.call(call, what=f"`{node.name}`", timeout=timeout)
        except (asyncio.CancelledError, WaitTimeout):
            process.send(Abort(call.id))
            raise

    def rollout_process(self, engine: str) -> Peer:
        return self.peers[rollout_name(engine)]

    async def abort_all(self, engine: str, worker: int, address: str, timeout: float) -> Done:
        """Before an engine counts as up: whatever it does for somebody else, it does it no more."""
        call = AbortAll(self.new_id(), worker, address)
        return await self.rollout_process(engine).call(call, what="the end of foreign requests", timeout=timeout)

    async def restore(self, name: str, timeout: float) -> Done:
        """Bring rows that were written back into the pool, on the host."""
        return await self.process(None).call(Restore(self.new_id(), name), what=f"the return of rows/{name}", timeout=timeout)

    async def on_owner(self, node: Node, call: Call, timeout: float) -> Done:
        """On rank 0 of the worker that owns the weights the node is handed."""
        return await self.process(node.weights[0].owner).call(call, what=f"`{node.name}`", timeout=timeout)

    async def everywhere(self, nodes: Iterable[Node], timeout: float) -> None:
        """Nodes without fields, on every rank of their worker: the loads."""
        calls = [self.call(node, rank, Call(self.new_id(), node.id), timeout) for node in nodes for rank in range(self.ranks(node))]
        await asyncio.gather(*calls)

    async def save(self, worker: int, rank: int, path: str, timeout: float) -> Done:
        return await self.process(worker, rank).call(Save(self.new_id(), path), what="the checkpoint", timeout=timeout)

    def outstanding(self) -> list[Outstanding]:
        """Every call that was not answered yet."""
        return [Outstanding(what, name, since) for name, peer in self.peers.items() for what, since in peer.outstanding.values()]

    def free_late(self, done: Done) -> None:
        """The answer of a call that nobody waits for any more: its block has no other reader."""
        if done.key is not None:
            self.free([done.key])

    def free(self, keys: Iterable[Key]) -> None:
        """Tell the owner of each lane which of its blocks nobody will read again."""
        by_lane: dict[int, list[Key]] = {}
        for key in keys:
            by_lane.setdefault(key.lane, []).append(key)
        for lane, freed in by_lane.items():
            self.peers[self.lanes[lane]].send(Free(tuple(freed)))  # one that has ended hears nothing: who takes its lane over is told


def process_name(worker: Worker, rank: int = 0) -> str:
    """`actor` for rank 0, `actor.1` for the next."""
    return worker.name if rank == 0 else f"{worker.name}.{rank}"


def engine_names(worker: ir.Worker) -> tuple[str, ...]:
    """The engines that a rollout worker stands for: `engine`, or `engine.0`, `engine.1`, ... of its replicas."""
    return (worker.name,) if worker.replicas == 1 else tuple(f"{worker.name}.{i}" for i in range(worker.replicas))


def rollout_name(engine: str) -> str:
    """The process beside an engine that runs the turn loop."""
    return f"{engine}.rollout"
