"""The graph of a pipeline, frozen: what every pass reads and what a plan stores.

    Graph ── devices    accelerators that workers share
          ├─ workers    processes with an engine
          ├─ feedbacks  the back edges: weights that the next step starts from
          ├─ nodes      calls of operators, and records put together (operator is None), in the order of the trace
          └─ fields     what nodes write; nodes[f.node] is the one writer of field f

An id is an index into its tuple. Names are stable: checkpoints key on those of workers and feedbacks, `replace` on those of nodes.
Facts that a pass derives are not here but in side tables (facts.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec

from ..language.dims import Dim, Fresh
from ..language.source import Place, Ref
from ..language.spec import LOG_PROB, READABLE, Role, Spec
from ..language.stale import Stale
from ..language.traced import Replaced

__all__ = [
    "Devices",
    "Dim",
    "Feedback",
    "Field",
    "Fresh",
    "Graph",
    "Ignore",
    "Lines",
    "LossUse",
    "Node",
    "Place",
    "Ref",
    "Replaced",
    "Result",
    "Role",
    "Size",
    "Spec",
    "State",
    "Use",
    "WeightsUse",
    "Worker",
    "decode",
    "encode",
]

T = TypeVar("T")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One column that a node writes."""

    id: int
    name: str
    node: int  # its writer
    declared: Spec | None  # None: as its source
    source: int | None = None  # the field that it mirrors: those of records and of row operators


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One field handed to a node."""

    param: str  # "uid", or "rows.uid" for a field of a record
    field: int
    declared: Spec | None  # None: passed through unread
    read: bool
    forward: str | None = None  # the field of the training forward that may stand in for it, see `Loss.from_forward`
    at: Place  # of the argument
    declaration: Ref  # of the parameter, or of the field in the record class that asks for it


class WeightsUse(msgspec.Struct, frozen=True, kw_only=True):
    """One set of weights handed to a node, or to the close of a feedback."""

    param: str
    name: str  # of the feedback, or of the value
    reading: str  # frozen | current | served | move | next
    wanted: str  # what the parameter declares: a reading, or "any" that can be read
    feedback: int | None  # None: loaded, never trained
    owner: int  # the worker that loaded the first version
    writer: int | None  # the node that made this value; None: a reading of a feedback
    served_by: tuple[int, ...]  # workers that a sync has brought it to
    at: Place

    @property
    def fits(self) -> bool:
        """The parameter takes this reading."""
        return self.wanted == self.reading or (self.wanted == "any" and self.reading in READABLE)


class LossUse(msgspec.Struct, frozen=True, kw_only=True):
    """One loss of a training call. `from_config({"$data": ref, **options})` is the loss again."""

    ref: str
    options: dict[str, Any]
    rows: str  # the record class that it reads
    reads: dict[str, Spec]  # empty when it is not active
    forward: dict[str, Spec] = {}  # what the forward yields for it
    denominator: str | float
    active: bool
    corrects: tuple[str, ...]

    @property
    def scores(self) -> bool:
        """Its forward yields log-probs: what it trains is a policy."""
        return any(spec.role is not None and spec.role.kind == LOG_PROB for spec in self.forward.values())

    @property
    def name(self) -> str:
        """The class name."""
        return self.ref.rpartition(":")[2]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator declares about a letter of its result."""

    of: Dim | None = None  # None: only the run knows
    at_most: Dim | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker or an operator declares to keep across steps. bytes: in letters of its owner."""

    name: str
    bytes: Dim
    in_checkpoint: bool
    trained: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The form of what a node returns."""

    kind: Literal["field", "record", "rows", "micro", "weights", "data", "none"]
    record: str | None = None  # class of the record, for record, rows and micro
    param: str | None = None  # the parameter whose record it mirrors, for rows and micro
    reading: str | None = None  # for weights


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an operator; or a record that is put together, with operator None."""

    id: int
    name: str  # unique: `operator`, then `operator:target`, then `operator#2`
    title: str  # as the user calls it: `actor.log_probs`, `grpo`, `TrainRows`
    operator: str | None  # "module:qualname"; of a method "module:Class.method"
    per: Literal["row", "group", "batch", "micro", "run"]
    rows: Literal["keep", "expand", "form", "filter", "permute", "pad", "shard", "pack"]
    index: str | None  # "module:qualname" of the pure function that plans the rows
    sizes: dict[str, Size]  # letters of the result that no input binds
    bound: dict[str, int]  # letters that an integer parameter binds
    bound_by: dict[str, str]  # letter -> that parameter
    least_group: int  # members that a group must have
    least_kept: int = 0  # of a filter that takes groups apart: trajectories that it leaves of one, at least
    serves: str | None  # the parameter whose worker then serves these weights
    corrects: tuple[str, ...]
    copies: dict[str, str]  # field of the result -> the parameter that it repeats
    sink: bool
    state: tuple[State, ...]
    worker: int | None
    params: dict[str, Any]  # configuration only, as to_config gives it; defaults included
    records: dict[str, str]  # parameter -> class of the record it was given
    order: tuple[str, ...]  # parameters in the order of the signature, without self
    uses: tuple[Use, ...]
    weights: tuple[WeightsUse, ...]
    losses: tuple[LossUse, ...]
    outs: tuple[int, ...]
    result: Result
    target: str | None  # the name it is assigned to
    at: Place
    via: Place | None  # the line of the pipeline, when a helper function makes the call
    failed: bool  # refused while it was traced: nothing about its results is news

    @property
    def is_record(self) -> bool:
        """No work: a record is put together."""
        return self.operator is None

    @property
    def fills(self) -> int | None:
        """Of a sync: the worker that gets the weights."""
        given = self.params.get(self.serves) if self.serves is not None else None
        return int(given["$worker"]) if isinstance(given, dict) else None


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Accelerators under one name. count 0: it was refused."""

    id: int
    name: str
    count: int
    at: Place


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker object of the pipeline. `resolve(ref)(**from_config(options))` is the worker again."""

    id: int
    name: str
    ref: str
    options: dict[str, Any]
    dp_size: int  # data-parallel ranks: they alone cut rows
    tp_size: int
    pp_size: int
    cp_size: int
    replicas: int  # of a rollout engine
    devices: int | None  # None: CPU processes of its own
    temperature: float
    top_p: float
    state: tuple[State, ...]
    at: Place

    @property
    def world_size(self) -> int:
        """All its ranks, of all replicas."""
        return self.dp_size * self.tp_size * self.pp_size * self.cp_size * self.replicas

    @property
    def kind(self) -> str:
        """The class name: which kind of engine it is."""
        return self.ref.rpartition(":")[2]


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """A back edge. `closes` should hold exactly one."""

    id: int
    name: str
    init: int  # the node that loads the first version
    owner: int
    max_lag: int
    stale: Stale = "wait"
    at: Place
    via: Place | None
    closes: tuple[WeightsUse, ...]


class Lines(msgspec.Struct, frozen=True):
    """Lines of a file, the last one included."""

    file: str
    first: int
    last: int


class Ignore(msgspec.Struct, frozen=True, kw_only=True):
    """A comment `# rlflow: ignore[CODE]`."""

    at: Place
    codes: tuple[str, ...]
    covers: tuple[Lines, ...]  # its own statement, and the lines of helpers that only this leads to
    judged: bool  # its statement ran, so that it is to suppress something


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # dict: for the cached properties
    """A whole pipeline."""

    name: str
    module: str
    parameters: dict[str, Any]  # of the pipeline function, resolved, as to_config gives them
    devices: tuple[Devices, ...]
    workers: tuple[Worker, ...]
    feedbacks: tuple[Feedback, ...]
    nodes: tuple[Node, ...]
    fields: tuple[Field, ...]
    ignores: tuple[Ignore, ...] = ()
    replaced: tuple[Replaced, ...] = ()

    def writer(self, field: int) -> Node:
        """The node that writes a field."""
        return self.nodes[self.fields[field].node]

    def makers(self, node: Node) -> set[int]:
        """The nodes that write what a node is handed."""
        return {self.fields[use.field].node for use in node.uses}

    def origin(self, field: int) -> Field:
        """The field that holds the numbers: seen through records and row operators."""
        return self.fields[self._origins[field]]

    @cached_property
    def _origins(self) -> list[int]:
        """By field; a source comes before what mirrors it."""
        found: list[int] = []
        for field in self.fields:
            found.append(field.id if field.source is None else found[field.source])
        return found

    def uses_of(self, feedback: Feedback, *readings: str) -> Iterator[tuple[Node, WeightsUse]]:
        """Calls that take one of these readings. (One that was given it and takes another is refused for that alone.)"""
        return ((node, w) for node, w in self._weights_uses.get(feedback.id, ()) if w.reading in readings and w.fits)

    @cached_property
    def _weights_uses(self) -> dict[int, list[tuple[Node, WeightsUse]]]:
        """By feedback."""
        found: dict[int, list[tuple[Node, WeightsUse]]] = {}
        for node in self.nodes:
            for weights in node.weights:
                if weights.feedback is not None:
                    found.setdefault(weights.feedback, []).append((node, weights))
        return found

    def mirrors(self, node: Node) -> Iterator[tuple[Field, Use]]:
        """Results of a record or row operator, each with the use that it stands for."""
        prefix = "" if node.is_record else f"{node.result.param}."
        by_param = {use.param: use for use in node.uses}
        for out in node.outs:
            field = self.fields[out]
            if field.source is not None:
                yield field, by_param[prefix + field.name]

    def copied(self, node: Node) -> dict[int, Use]:
        """Results that an operator declares to be copies, each with the use that it repeats."""
        if not node.copies:
            return {}
        by_param = {use.param: use for use in node.uses}
        given = {out: node.copies.get(self.fields[out].name, "") for out in node.outs}
        return {out: by_param[param] for out, param in given.items() if param in by_param}


def encode(value: Any) -> bytes:
    """JSON of a struct of this package; equal values give equal bytes."""
    plain = msgspec.to_builtins(value, enc_hook=_enc, order="deterministic", str_keys=True)
    return msgspec.json.encode(plain)


def decode(data: bytes, kind: type[T]) -> T:
    """The inverse of `encode`. Raises msgspec.ValidationError with the path of what does not fit."""
    return msgspec.json.decode(data, type=kind, dec_hook=_dec)


def _enc(value: Any) -> Any:
    if isinstance(value, Dim):
        return str(value)
    raise NotImplementedError(f"{type(value)} has no JSON form")


def _dec(kind: type, data: Any) -> Any:
    if kind is Dim:
        return Dim.parse(data)
    raise NotImplementedError(f"{kind} has no JSON form")
