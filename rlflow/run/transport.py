"""Frames over Unix sockets, counted. Blocking in a worker, asyncio in the controller.

worker      Channel(connect(path)).send(message) / .receive()
controller  Peer(name, reader, writer): call(message) -> Done, or OperatorError / WorkerDied / WaitTimeout
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path

import msgspec

from ..errors import OperatorError, WaitTimeout, WorkerDied
from .messages import MAX_FRAME, Call, Done, Failed, Save, ToController, ToWorker

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


def _frame(message: object) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a {type(message).__name__} of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


def _size(header: bytes) -> int:
    (size,) = _LENGTH.unpack(header)
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
    return int(size)


class Channel:
    """The worker's end: blocking; `send` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(ToWorker)

    def send(self, message: ToController) -> None:
        frame = _frame(message)
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> ToWorker | None:
        """The next message; None when the controller closed the socket."""
        header = self._reader.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return None
        return self._decoder.decode(self._reader.read(_size(header)))

    def close(self) -> None:
        self._socket.close()


class Peer:
    """The controller's end of one worker's socket. bytes_in, bytes_out: everything that ever crossed it."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self.bytes_in = self.bytes_out = 0
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._decoder = msgspec.msgpack.Decoder(ToController)
        self._gone: WorkerDied | None = None

    async def receive(self) -> ToController | None:
        """The next message of the worker; None at its end."""
        try:
            header = await self._reader.readexactly(_LENGTH.size)
            body = await self._reader.readexactly(_size(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.bytes_in += _LENGTH.size + len(body)
        return self._decoder.decode(body)

    def send(self, message: ToWorker) -> None:
        frame = _frame(message)
        self.bytes_out += len(frame)
        self._writer.write(frame)

    async def call(self, message: Call | Save, *, what: str, timeout: float) -> Done:
        """Send and wait for the answer. `what` names the wait in errors; timeout in seconds."""
        if self._gone is not None:
            raise self._gone
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiting[message.id] = future
        self.send(message)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise WaitTimeout(f"{what} on `{self.name}` did not return within {timeout:g} s") from None
        finally:
            self._waiting.pop(message.id, None)

    async def listen(self) -> None:
        """Hand answers to those who wait, until the worker closes its end."""
        while (message := await self.receive()) is not None:
            match message:
                case Done() if (future := self._waiting.get(message.id)) and not future.done():
                    future.set_result(message)
                case Failed() if (future := self._waiting.get(message.id)) and not future.done():
                    future.set_exception(OperatorError(f"{message.kind} on `{self.name}`: {message.message}\n{message.trace}"))
                case _:
                    pass  # an answer that came after its wait ran out

    def lost(self, error: WorkerDied) -> None:
        """The process is gone: whoever waits for it is told."""
        self._gone = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        self._writer.close()
