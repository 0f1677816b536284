"""Frames over Unix sockets, counted. Blocking in a worker, asyncio in the controller.

worker      Channel(path).send(message) / .receive()
controller  Peer(name, reader, writer).call(message) -> Done, or OperatorError | WorkerDied | WaitTimeout

    call ──▶ waiting ──Turn──▶ `turned` hears of it, and it waits on
                ├──Done──▶ returned
                ├──Failed──▶ OperatorError
                ├──lost──▶ WorkerDied
                └──time is up──▶ WaitTimeout ──Done after all──▶ `late`: nobody knows its block but us
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..errors import OperatorError, RlflowError, WaitTimeout, WorkerDied
from .messages import MAX_FRAME, Answered, Done, Failed, ToController, ToWorker, Turn

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


class BadFrame(RlflowError):
    """A message that is over the limit, or bytes that are none."""


def _frame(message: object) -> bytes:
    body = _encoder.encode(message)
    _check_size(len(body), type(message).__name__)
    return _LENGTH.pack(len(body)) + body


def _size(header: bytes) -> int:
    (size,) = _LENGTH.unpack(header)
    _check_size(size, "frame")
    return int(size)


def _check_size(size: int, what: str) -> None:
    if size > MAX_FRAME:
        raise BadFrame(f"a {what} of {size} bytes is over the limit of {MAX_FRAME}: only keys and row numbers go over this socket")


class Channel:
    """The worker's end: blocking; `send` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(ToWorker)

    def send(self, message: ToController) -> None:
        """Raises BadFrame for a message over the limit; nothing of it was sent then."""
        frame = _frame(message)
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> ToWorker | None:
        """The next message; None when the controller closed the socket."""
        header = self._reader.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return None
        size = _size(header)
        body = self._reader.read(size)
        return self._decoder.decode(body) if len(body) == size else None

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


class Peer:
    """The controller's end of one worker's socket. bytes_in, bytes_out: everything that ever crossed it.

    late: is given what a call returned after nobody waited for it any more.
    """

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self.bytes_in = self.bytes_out = 0
        self.late: Callable[[Done], None] = lambda done: None
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Done | Failed]] = {}
        self._turned: dict[int, Callable[[int], None]] = {}
        self.outstanding: dict[int, tuple[str, float]] = {}  # what was called and when (monotonic seconds), by id
        self._decoder = msgspec.msgpack.Decoder(ToController)
        self._gone: WorkerDied | None = None

    async def receive(self) -> ToController | None:
        """The next message of the worker; None at its end. Raises BadFrame for bytes that are no message."""
        try:
            header = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(_size(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.bytes_in += _LENGTH.size + len(body)
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise BadFrame(f"`{self.name}` sent what is no message of ours: {error}") from error

    def send(self, message: ToWorker) -> None:
        """To a process that is gone nothing is sent."""
        frame = _frame(message)
        if self._gone is None:
            self.bytes_out += len(frame)
            self._writer.write(frame)

    async def call(self, message: Answered, *, what: str, timeout: float, turned: Callable[[int], None] | None = None) -> Done:
        """Send and wait for the answer. `what` names the operator in errors; timeout in seconds; turned: told of turns before it.

        Raises OperatorError if it raised, WorkerDied if the process is or goes away, WaitTimeout.
        """
        if self._gone is not None:
            raise self._gone
        self.send(message)
        future: asyncio.Future[Done | Failed] = asyncio.get_running_loop().create_future()
        self._waiting[message.id] = future
        self.outstanding[message.id] = what, time.monotonic()
        if turned is not None:
            self._turned[message.id] = turned
        try:
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            raise WaitTimeout(f"{what} on `{self.name}` did not return within {timeout:g} s") from None
        finally:
            del self._waiting[message.id], self.outstanding[message.id]
            self._turned.pop(message.id, None)
        if isinstance(answer, Failed):
            trace = f"\n{answer.trace.rstrip()}" if answer.trace else ""
            raise OperatorError(f"{what} on `{self.name}` raised {answer.kind}: {answer.message}{trace}")
        return answer

    async def listen(self) -> None:
        """Hand answers to those who wait, until the worker closes its end. A turn of a call that nobody waits for is nobody's."""
        while (message := await self.receive()) is not None:
            if isinstance(message, Turn):
                if (turned := self._turned.get(message.call)) is not None:
                    turned(message.turn)
                continue
            if not isinstance(message, Done | Failed):
                raise BadFrame(f"`{self.name}` sent a second {type(message).__name__}")
            future = self._waiting.get(message.id)
            if future is not None and not future.done():
                future.set_result(message)
            elif isinstance(message, Done):
                self.late(message)

    def lost(self, error: WorkerDied) -> None:
        """The process is gone: whoever waits for it is told. The first reason stands."""
        self._gone = self._gone or error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._gone)

    def close(self) -> None:
        self._writer.close()
