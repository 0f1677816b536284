"""The processes of a run: started, watched, ended, each for itself.

    controller ── server      a rollout engine's HTTP server, one a worker that has one
               ├─ rollout     the turn loop beside it
               ├─ worker      one a dp rank of a worker with an engine
               └─ host        operators without a worker

    start ──▶ up ──▶ gone: whoever waits for it is told; unless it was asked to end, so is `Fleet.died`, with its last words
       └──▶ gone before it was up: told to whoever started it

What a process sent before it ended is heard first. Every process also asks the kernel to die with the controller, so that a kill -9 of
the controller leaves none behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import EngineError, StartRefused, WaitTimeout, WorkerDied
from .messages import CannotStart, Hello, Shutdown
from .rundir import RunDir
from .transport import BadFrame, Peer

# Many processes share the cores, and idle OpenMP threads spin: a worker that wants more torch threads asks for them itself.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

HELLO_SECONDS = 600.0  # from the connection of a process to its Hello, before which it loads its model; a stranger says none
END_SECONDS = 5.0  # a process that closed its socket ends within them, or it is ended

X = TypeVar("X")


@dataclass(eq=False)
class Process:
    """gone: set when it has ended and all that it sent is heard. told: how it ended is news for `Fleet.died`."""

    name: str
    handle: asyncio.subprocess.Process
    gone: asyncio.Future[WorkerDied]
    peer: Peer | None = None
    told: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # its socket is at its end

    @property
    def pid(self) -> int:
        return self.handle.pid


class Fleet:
    """All processes of one run, and the Unix socket they call back on.

    died: is given every process that was up and ended without being asked to.
    """

    def __init__(
        self,
        run_dir: RunDir,
        socket: Path,
        died: Callable[[str, WorkerDied], None] = lambda name, error: None,
        *,
        hello_seconds: float = HELLO_SECONDS,
    ) -> None:
        self.run_dir, self.socket, self.died, self.hello_seconds = run_dir, socket, died, hello_seconds
        self.processes: dict[str, Process] = {}
        self._hello: dict[str, asyncio.Future[tuple[Hello, Peer]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._folder = -1  # of the socket
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._refused: list[Peer] = []  # kept open: they wait to be ended

    async def listen(self) -> None:
        """A socket that a killed controller left there is replaced."""
        self.socket.unlink(missing_ok=True)
        self._folder = os.open(self.socket.parent, os.O_RDONLY | os.O_DIRECTORY)
        self._server = await asyncio.start_unix_server(self._connected, path=self.address)
        os.chmod(self.socket, 0o600)

    @property
    def address(self) -> str:
        """The socket, by a path of a few bytes: that of a Unix socket has at most 107. Good as long as the controller lives."""
        return f"/proc/{os.getpid()}/fd/{self._folder}/{self.socket.name}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer("?", reader, writer)
        try:
            hello = await asyncio.wait_for(peer.receive(), self.hello_seconds)
        except (BadFrame, TimeoutError):
            hello = None
        waiting = self._hello.pop(hello.name, None) if isinstance(hello, Hello | CannotStart) else None
        match hello:
            case Hello() if waiting is not None and not waiting.done():
                peer.name = hello.name
                process = self.processes[hello.name]
                process.peer = peer
                waiting.set_result((hello, peer))
                await self._listen(process, peer)
            case CannotStart() if waiting is not None and not waiting.done():
                waiting.set_exception(StartRefused(f"{hello.message}\n(`{hello.name}` could not start: {self.run_dir.log(hello.name)})"))
                self._refused.append(peer)
            case _:
                peer.close()  # nobody of ours

    async def _listen(self, process: Process, peer: Peer) -> None:
        """Until the process closes its end. Then it has ended, and how is better news than that it did; or it hangs."""
        why = "closed its socket but did not end"
        try:
            await peer.listen()
        except BadFrame as error:
            why = str(error)
        else:
            process.heard.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(process.gone), END_SECONDS)
        if not process.gone.done() and not self._ending.is_set():
            self._lost(process, WorkerDied(f"`{peer.name}` {why}; its log is {self.run_dir.log(peer.name)}"))
            _signal(process, signal.SIGKILL)

    async def start(self, name: str, argv: Sequence[str]) -> Process:
        """Start a process whose output goes to logs/NAME.log. A session of its own: Ctrl-C reaches the controller only."""
        with self.run_dir.log(name).open("ab") as log:
            handle = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT | dict(os.environ)
            )
        process = Process(name, handle, asyncio.get_running_loop().create_future())
        self.processes[name] = process
        self._spawn(self._watch(process))
        return process

    async def start_worker(self, name: str, site_file: Path, timeout: float) -> tuple[Hello, Peer]:
        """Start a worker process and wait for its Hello.

        Raises StartRefused if it says why it cannot start, WorkerDied if it ends before, WaitTimeout.
        """
        waiting: asyncio.Future[tuple[Hello, Peer]] = asyncio.get_running_loop().create_future()
        self._hello[name] = waiting
        process = await self.start(name, [sys.executable, "-m", "rlflow.run.worker", str(site_file)])
        return await self._or_death(waiting, process, timeout)

    async def start_server(self, name: str, argv: Sequence[str], ready_file: Path, timeout: float) -> str:
        """Start an engine's server and wait until it can serve; its address. Raises EngineError, WorkerDied, WaitTimeout."""
        process = await self.start(name, argv)

        async def ready() -> str:
            while not ready_file.exists():
                await asyncio.sleep(0.05)
            url = msgspec.json.decode(ready_file.read_bytes()).get("url")
            if not isinstance(url, str):
                raise EngineError(f"the ready file of `{name}` gives no url: {ready_file}")
            return url

        return await self._or_death(asyncio.ensure_future(ready()), process, timeout)

    async def _or_death(self, wanted: asyncio.Future[X], process: Process, timeout: float) -> X:
        """The result of `wanted`, unless the process ends or the time runs out before. From then on its end is news."""
        either: set[asyncio.Future[Any]] = {wanted, process.gone}
        try:
            done, _ = await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if process.gone in done:
                raise process.gone.result()
            if wanted in done:
                result = wanted.result()
                process.told = True
                return result
        finally:
            wanted.cancel()
        raise WaitTimeout(f"start of `{process.name}` took more than {timeout:g} s")

    async def _watch(self, process: Process) -> None:
        code = await process.handle.wait()
        if process.peer is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.heard.wait(), END_SECONDS)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = self.run_dir.tail(process.name)
        last_words = f"\n--- end of logs/{process.name}.log\n{tail}" if tail else ""
        self._lost(process, WorkerDied(f"`{process.name}` (pid {process.pid}) died: {how}{last_words}"))

    def _lost(self, process: Process, error: WorkerDied) -> None:
        """First `died`, then those who wait for it: what fails with it comes after it."""
        if process.gone.done():
            return
        process.gone.set_result(error)
        if process.told and not self._ending.is_set():
            self.died(process.name, error)
        if process.peer is not None:
            process.peer.lost(error)

    async def end(self, names: Iterable[str]) -> None:
        """End these processes at once, those that run; whoever waits for one is told. None of it is news for `died`."""
        ending = [self.processes[name] for name in names if name in self.processes]
        for process in ending:
            process.told = False
            _signal(process, signal.SIGKILL)
        if ending:
            _, hang = await asyncio.wait([process.gone for process in ending], timeout=2 * END_SECONDS)
            if hang:
                raise WaitTimeout(f"{[p.name for p in ending if not p.gone.done()]} did not end within {2 * END_SECONDS:g} s of SIGKILL")
        for process in ending:
            if self.processes.get(process.name) is process:
                del self.processes[process.name]

    async def ended(self, names: Iterable[str], within: float) -> bool:
        """Whether one of these ends within so many seconds, or has."""
        gone = [self.processes[name].gone for name in names if name in self.processes]
        if not gone:
            return True
        done, _ = await asyncio.wait(gone, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

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
            os.close(self._folder)
            self._server = None


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.handle.send_signal(number)
