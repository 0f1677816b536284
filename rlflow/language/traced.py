"""What a trace is made of: mutable, with live Python objects.

TracedNode       one call of an operator, or a record put together
  TracedUse        one field handed to it
  WeightsArgument  one set of weights handed to it
TracedField      one field                  TracedWeights    one set of weights
TracedWorker, TracedDevices, TracedFeedback
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from .source import Call, Place, Ref
from .spec import Spec

if TYPE_CHECKING:
    from .devices import Devices
    from .feedback import Feedback
    from .loss import Loss
    from .operator import Declaration
    from .worker import Worker


@dataclass(eq=False, repr=False)
class TracedField:
    id: int
    name: str
    node: TracedNode
    declared: Spec | None
    source: TracedField | None = None  # records and row operators: the field it mirrors


@dataclass(eq=False, repr=False)
class TracedWeights:
    name: str
    reading: str  # frozen | current | served | move | next
    owner: Worker
    feedback: Feedback[Any] | None = None
    writer: TracedNode | None = None
    served_by: tuple[Worker, ...] = ()
    model: Any = None  # the kind of model, `Policy`; None: nobody says


@dataclass(eq=False, repr=False)
class TracedUse:
    param: str
    field: TracedField
    declared: Spec | None
    at: Place
    declaration: Ref
    read: bool = True
    forward: str | None = None  # as ir.Use


@dataclass(eq=False, repr=False)
class WeightsArgument:
    param: str
    weights: TracedWeights
    wanted: str
    at: Place


@dataclass(eq=False, repr=False)
class TracedNode:
    id: int
    name: str  # unique
    title: str
    call: Call
    via: Place | None
    declaration: Declaration | None = None  # None: a record is put together
    worker: Worker | None = None
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    records: dict[str, type] = field(default_factory=dict[str, type])
    order: tuple[str, ...] = ()
    uses: list[TracedUse] = field(default_factory=list[TracedUse])
    weights: list[WeightsArgument] = field(default_factory=list[WeightsArgument])
    losses: tuple[Loss[Any, Any], ...] = ()
    outs: list[TracedField] = field(default_factory=list[TracedField])
    result: dict[str, Any] = field(default_factory=lambda: {"kind": "none"})  # as ir.Result
    failed: bool = False


@dataclass(eq=False, repr=False)
class TracedWorker:
    id: int
    worker: Worker
    call: Call


@dataclass(eq=False, repr=False)
class TracedDevices:
    id: int
    devices: Devices
    count: int
    call: Call


@dataclass(eq=False, repr=False)
class TracedFeedback:
    id: int
    feedback: Feedback[Any]
    init: TracedWeights
    call: Call
    via: Place | None
    closes: list[tuple[TracedWeights, Call]] = field(default_factory=list[tuple[TracedWeights, Call]])


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """A call that another operator took over."""

    call: str  # the name that it would have
    by: str
    given: tuple[str, ...]  # parameters that the call gives
    upstream: dict[str, int]  # parameter -> field of an earlier call
