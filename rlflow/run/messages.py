"""What goes over the socket between the controller and a worker process: ids, keys, lengths, numbers. Never tensors.

    controller ──Call, Continue, Abort, Restore, Free, Save, Shutdown──▶ worker
    controller ◀──Hello | CannotStart, Turn, Done, Failed── worker

A frame is a 4-byte little-endian length and a msgspec struct in msgpack, at most MAX_FRAME bytes. Structs travel as arrays: one call of a
trajectory and its answer take about 200 bytes.
"""

from __future__ import annotations

import msgspec

from ..data.pool.protocol import Key

MAX_FRAME = 64 * 1024 * 1024


class Source(msgspec.Struct, array_like=True, frozen=True):
    """Where one producer's columns lie: its blocks in order, and which of their rows this call wants.

    take: row numbers in the concatenation of the blocks, -1 for a pad row; None for all rows in order.
    """

    node: int
    keys: tuple[Key, ...]
    take: tuple[int, ...] | None = None


class Call(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Run one operator: written by the controller, read by the worker that the plan placed it on.

    cuts: for `per="micro"`: the sizes of the micro-batches of each mini-batch of this rank, in the order of the rows.
    version, timeline: of the weights that it is about.
    prompt: for the stream: (row of the data set, uid, traj_uid, attempt) of the trajectory to sample.
    engine, address: of the rollout engine that it is about, where there is one: id of the worker, URL of its server.
    keep: name in the folder of rows under which the results are written before the answer; "" for none.
    """

    id: int
    node: int
    version: int = 0
    sources: tuple[Source, ...] = ()
    cuts: tuple[tuple[int, ...], ...] = ()
    prompt: tuple[int, int, int, int] | None = None
    engine: int | None = None
    address: str = ""
    timeline: int = 0
    keep: str = ""


class Turn(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The trajectory that the call of this id samples is ready for its turn number `turn`; the first one, 0, was asked for by the call."""

    call: int
    turn: int


class Continue(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The answer to `Turn`, of the same call and number: it may be asked of the server at `address`."""

    call: int
    turn: int
    address: str


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The call of this id is not wanted any more: end its wait for a turn, and its requests on engines. It is answered as ever."""

    call: int


class AbortAll(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """End every request that a rollout engine has: those of a controller before this one."""

    id: int
    engine: int
    address: str


class Restore(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Put rows that were written back into the pool; answered by what the call that wrote them was answered by."""

    id: int
    name: str


class Save(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Write a checkpoint of what this worker holds into `path`."""

    id: int
    path: str


class Free(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Blocks of this worker's lane that nobody will read again."""

    keys: tuple[Key, ...]


class Shutdown(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Close the engine and end."""


class Hello(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A worker process is ready. `rows`: how many prompts its data sets hold, by node."""

    name: str
    pid: int
    rows: dict[int, int] = {}


class CannotStart(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """In place of Hello: a data set, a model or an option of this process is wrong. `message` is all that its user has to know."""

    name: str
    message: str


class Done(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A call ended. key: the block of its results, None if there are none that anybody reads.

    lengths: tokens (S) of each leaf row, for the stream. spans: (version, start, end) of what sampled them, over the sampled tokens.
    metrics: numbers that the operator returned or that were measured on its results, by name.
    scores: how right each row was, of the operator that judges whole batches.
    left: of a filter that takes groups apart, the number of the trajectory of each row that it left.
    """

    id: int
    key: Key | None = None
    lengths: tuple[int, ...] = ()
    spans: tuple[tuple[int, int, int], ...] = ()
    metrics: dict[str, float] = {}
    scores: tuple[float, ...] = ()
    left: tuple[int, ...] = ()


class Failed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A call raised. `kind` is the class of the exception; `trace` its traceback in the worker, empty for what we raise for users."""

    id: int
    kind: str
    message: str
    trace: str


ToWorker = Call | Continue | Abort | AbortAll | Restore | Save | Free | Shutdown
Answered = Call | AbortAll | Restore | Save
ToController = Hello | CannotStart | Turn | Done | Failed
