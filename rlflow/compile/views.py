"""A plan as a person or a program asks about it, by name: what `rlflow explain --json` prints, and `plan.fields`, `plan.edges` ...

state       what lives across steps
feedbacks   every back edge: who owns, reads, trains and serves it, how far it lags
fields      every field once, where it is made: records and row operators hand on the same numbers
operators   every call: where it runs, what it reads, writes and frees
edges       what crosses from process to process
dropped     what the plan leaves out, and why
peaks       the most bytes of columns that each process holds
workers     processes with an engine, their ranks and devices
shifts      what goes to sleep and wakes where workers share devices
fused       row operators of which the controller makes one plan
"""

from __future__ import annotations

import msgspec


class FieldView(msgspec.Struct, frozen=True, kw_only=True):
    """One field, where it is made."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    scope: str  # stream | batch | shard | micro, where it is made
    role: str | None
    writer: str
    readers: tuple[str, ...]  # in the order in which they run
    born: str  # the operator after which it exists
    dies: str | None  # the operator that reads it last; None: nobody does, it never leaves its writer
    version: str | None  # the readings of feedbacks that it depends on, as `policy@served`
    layout: str  # ragged: stored at true lengths | dense: no token axis | packed
    bytes: str  # of all its rows, a polynomial in the sizes of the graph


class OperatorView(msgspec.Struct, frozen=True, kw_only=True):
    """One call."""

    name: str
    operator: str  # module:function
    worker: str  # the process that runs it
    per: str
    rows: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    frees: tuple[str, ...]  # whole columns, after it
    frees_rows: tuple[str, ...]  # of a filter: columns of which it frees the rows that it drops
    from_forward: dict[str, str]  # what it would read -> what of its own training forward stands in for it
    at: str  # file:line
    dropped: bool


class EdgeView(msgspec.Struct, frozen=True, kw_only=True):
    """What crosses from one process to another. Sizes are polynomials in the sizes of the graph; text is not counted."""

    from_: str = msgspec.field(name="from")
    to: str
    fields: tuple[str, ...]  # columns: by key, the receiver takes them from the pool
    bytes: str  # of a step, everything
    row_bytes: str  # of the columns, a row at its own length
    text: tuple[str, ...]  # those of the columns that are text, as long as the text is
    inline: tuple[str, ...]  # what the messages hold themselves
    weights: tuple[str, ...]  # feedbacks: version k + 1


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that lives across steps."""

    name: str
    owner: str  # worker, operator, feedback, or the controller
    bytes: str  # of one copy, in letters like N_actor, the parameters of `actor`
    in_checkpoint: bool


class FeedbackView(msgspec.Struct, frozen=True, kw_only=True):
    """One back edge."""

    name: str
    owner: str
    init: str  # the call that loads version 0
    max_lag: int
    stale: str  # what becomes of groups that are too slow for it: wait | drop | mask | correct
    worst_gap: int  # versions that a trained token can be behind, unless stale is "correct"
    in_flight: int  # most trajectories that are sampled at once; 0: no batch is sampled from it
    queue: int  # batches formed ahead of the one in training; each adds one to how far its rows are behind
    readers: dict[str, tuple[str, ...]]  # reading -> calls
    served_by: tuple[str, ...]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is left out."""

    name: str
    writer: str | None  # of a field; None for an operator
    why: str


class PeakView(msgspec.Struct, frozen=True, kw_only=True):
    """The most bytes of columns that a process can hold, at a call at which that may be: which call it is depends on the sizes."""

    process: str  # "pool": the columns that all of them share
    call: str
    bytes: str


class DroppedView(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan leaves out."""

    fields: tuple[str, ...]
    operators: tuple[str, ...]
    reasons: tuple[Reason, ...]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A process with an engine, once a rank."""

    name: str
    kind: str  # its class
    dp: int
    tp: int
    pp: int
    cp: int
    replicas: int  # of a rollout engine: so many servers, each with a rollout process
    devices: str | None  # accelerators that it may share; None: CPU processes of its own
    on: tuple[int, ...]  # which of them, a number a rank


class ShiftView(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a worker that goes or comes, because workers share devices."""

    before: str  # operator
    worker: str
    devices: str
    part: str  # weights | optimizer | kv_cache
    action: str  # release | resume | offload | onload


class Views(msgspec.Struct, frozen=True, kw_only=True):
    """All of them: the object of `rlflow explain --json`. Machines rely on its keys; more may come."""

    pipeline: str
    module: str
    state: tuple[StateView, ...]
    feedbacks: tuple[FeedbackView, ...]
    fields: tuple[FieldView, ...]
    operators: tuple[OperatorView, ...]
    edges: tuple[EdgeView, ...]
    dropped: DroppedView
    peaks: tuple[PeakView, ...]
    workers: tuple[WorkerView, ...]
    shifts: tuple[ShiftView, ...]  # of one step, in order
    fused: tuple[tuple[str, ...], ...]  # row operators that are one index plan
