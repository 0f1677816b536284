"""The processes of a run: started together, watched, ended together.

    controller ── server      a rollout engine's HTTP server, one a worker that has one
               ├─ rollout     the turn loop beside it
               ├─ worker      one a dp rank of a worker with an engine
               └─ host        operators without a worker

A process that ends before it is asked to ends the run: `Fleet.died` then holds its name and a WorkerDied with its last words.
Every process also asks the kernel to die with the controller, so that a kill -9 of the controller leaves none behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import EngineError, RlflowError, WaitTimeout, WorkerDied
from .messages import CannotStart, Hello, Shutdown
from .rundir import RunDir
from .transport import BadFrame, Peer

HELLO_SECONDS = 180.0
# Many processes share the cores, and idle OpenMP threads spin: a worker that wants more torch threads asks for them itself.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

END_SECONDS = 5.0  # a process that closed its socket ends within them, or it is given up

X = TypeVar("X")


@dataclass
class Process:
    name: str
    handle: asyncio.subprocess.Process
    peer: Peer | None = None

    @property
    def pid(self) -> int:
        return self.handle.pid


class Fleet:
    """All processes of one run, and the Unix socket they call back on."""

    def __init__(self, run_dir: RunDir, socket: Path) -> None:
        self.run_dir, self.socket = run_dir, socket
        self.processes: dict[str, Process] = {}
        self.died: asyncio.Future[tuple[str, WorkerDied]] = asyncio.get_running_loop().create_future()
        self._hello: dict[str, asyncio.Future[tuple[Hello, Peer]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._refused: list[Peer] = []  # kept open: they wait to be ended

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, path=str(self.socket))
        os.chmod(self.socket, 0o600)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer("?", reader, writer)
        try:
            hello = await peer.receive()
        except BadFrame:
            hello = None
        waiting = self._hello.pop(hello.name, None) if isinstance(hello, Hello | CannotStart) else None
        match hello:
            case Hello() if waiting is not None and not waiting.done():
                peer.name = hello.name
                waiting.set_result((hello, peer))
                await self._listen(peer)
            case CannotStart() if waiting is not None and not waiting.done():
                waiting.set_exception(RlflowError(f"{hello.message}\n(`{hello.name}` could not start: {self.run_dir.log(hello.name)})"))
                self._refused.append(peer)
            case _:
                peer.close()  # nobody of ours

    async def _listen(self, peer: Peer) -> None:
        """Until the process closes its end. Then it has ended, and how is better news than that it did; or it hangs."""
        why = "closed its socket but did not end"
        try:
            await peer.listen()
        except BadFrame as error:
            why = str(error)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), END_SECONDS)
        if not self._ending.is_set():
            self._lost(peer.name, WorkerDied(f"`{peer.name}` {why}; its log is {self.run_dir.log(peer.name)}"))

    async def start(self, name: str, argv: Sequence[str]) -> Process:
        """Start a process whose output goes to logs/NAME.log. A session of its own: Ctrl-C reaches the controller only."""
        with self.run_dir.log(name).open("ab") as log:
            handle = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT | dict(os.environ)
            )
        process = Process(name, handle)
        self.processes[name] = process
        self._spawn(self._watch(process))
        return process

    async def start_worker(self, name: str, site_file: Path) -> tuple[Hello, Peer]:
        """Start a worker process and wait for its Hello."""
        waiting: asyncio.Future[tuple[Hello, Peer]] = asyncio.get_running_loop().create_future()
        self._hello[name] = waiting
        process = await self.start(name, [sys.executable, "-m", "rlflow.run.worker", str(site_file)])
        hello, peer = await self._or_death(waiting, f"start of `{name}`", HELLO_SECONDS)
        process.peer = peer
        return hello, peer

    async def start_server(self, name: str, argv: Sequence[str], ready_file: Path) -> str:
        """Start an engine's server and wait until it can serve; its address."""
        await self.start(name, argv)

        async def ready() -> str:
            while not ready_file.exists():
                await asyncio.sleep(0.05)
            url = msgspec.json.decode(ready_file.read_bytes()).get("url")
            if not isinstance(url, str):
                raise EngineError(f"the ready file of `{name}` gives no url: {ready_file}")
            return url

        return await self._or_death(asyncio.ensure_future(ready()), f"start of `{name}`", HELLO_SECONDS)

    async def _or_death(self, wanted: asyncio.Future[X], what: str, timeout: float) -> X:
        """The result of `wanted`, unless a process dies or the time runs out before."""
        either: set[asyncio.Future[Any]] = {wanted, self.died}
        try:
            done, _ = await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if wanted in done:
                return wanted.result()
        finally:
            wanted.cancel()
        if self.died in done:
            raise self.died.result()[1]
        raise WaitTimeout(f"{what} took more than {timeout:g} s")

    async def _watch(self, process: Process) -> None:
        code = await process.handle.wait()
        if self._ending.is_set():
            return
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = self.run_dir.tail(process.name)
        last_words = f"\n--- end of logs/{process.name}.log\n{tail}" if tail else ""
        self._lost(process.name, WorkerDied(f"`{process.name}` (pid {process.pid}) died: {how}{last_words}"))

    def _lost(self, name: str, error: WorkerDied) -> None:
        """Whoever waits for any process is told: without one of them there is no run."""
        for process in self.processes.values():
            if process.peer is not None:
                process.peer.lost(error)
        if not self.died.done():
            self.died.set_result((name, error))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def stopping(self) -> bool:
        return self._ending.is_set()

    def hurry(self) -> None:
        """Give no more grace to what is being stopped."""
        self._hurry.set()

    async def _patience(self, waits: Sequence[asyncio.Future[int]], grace: float) -> None:
        """Until all have ended, the grace is over, or somebody is in a hurry."""
        ended, hurry = asyncio.gather(*waits), asyncio.ensure_future(self._hurry.wait())
        either: set[asyncio.Future[Any]] = {ended, hurry}
        await asyncio.wait(either, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    async def stop(self, *, grace: float = 5.0) -> None:
        """End every process: asked first, then SIGTERM, then SIGKILL, with `grace` seconds after each."""
        self._ending.set()
        running = [p for p in self.processes.values() if p.handle.returncode is None]
        for process in running:
            if process.peer is not None:
                process.peer.send(Shutdown())
            else:
                _signal(process, signal.SIGTERM)
        for sent in (signal.SIGTERM, signal.SIGKILL, None):
            waits = [asyncio.ensure_future(p.handle.wait()) for p in running if p.handle.returncode is None]
            if not waits:
                break
            await self._patience(waits, grace)
            for process in running:
                if sent is not None and process.handle.returncode is None:
                    _signal(process, sent)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        self.socket.unlink(missing_ok=True)
        if self.run_dir.path not in self.socket.parents:
            self.socket.parent.rmdir()  # it was made for the socket alone


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.handle.send_signal(number)
