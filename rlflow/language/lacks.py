"""What a call asks for and is not given: fields that a record class has not, or that nothing makes.

A mistake is told once, however many calls and fields it shows in; each of the calls is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import source
from .absent import Absent
from .diagnostic import Label, nearest
from .loss import Loss, reads_of, rows_of
from .operator import WHOSE
from .record import Record, labels, names_of
from .source import Place, Ref

if TYPE_CHECKING:
    from .tracer import CallTracer

__all__ = ["reader_of", "refuse_anonymous", "refuse_hole", "refuse_lacking"]


def reader_of(losses: Iterable[Loss[Any, Any]], field: str, wanted: type[Record]) -> type[Record]:
    """The record class that asks for a field: that of a loss, else the parameter's own."""
    return next((rows_of(loss) for loss in losses if field in reads_of(loss)), wanted)


def refuse_lacking(call: CallTracer, missing: Sequence[str], name: str, given: type[Record], wanted: type[Record], at: Place) -> None:
    """A record class without fields that are asked for is one mistake a reader."""
    readers = dict[type[Record], list[str]]()
    for field in missing:
        readers.setdefault(reader_of(call.node.losses, field, wanted), []).append(field)
    for reader, fields in readers.items():
        _refuse_lacking(call, fields, name, given, reader, at)


def _refuse_lacking(call: CallTracer, missing: Sequence[str], name: str, given: type[Record], reader: type[Record], at: Place) -> None:
    if call.told((given, reader)):
        return
    who, first = _reader_name(call, missing[0]), missing[0]
    what = f"field `{first}`" if len(missing) == 1 else "fields " + ", ".join(f"`{n}`" for n in missing)
    near = nearest(first, names_of(given)) if len(missing) == 1 else ""
    call.refuse(
        "RLF001",
        f"`{given.__name__}` has no {what}, which {who} reads{near}",
        where=at,
        label=f"given as `{name}`",
        related=labels(source.attribute_ref(reader, first)),
        help=f"let `{given.__name__}` inherit from `{reader.__name__}`",
    )


def refuse_anonymous(call: CallTracer, given: type[Record], at: Place) -> None:
    """A group is taken apart, and nothing says whose rows are left."""
    call.refuse(
        "RLF001",
        f"`{given.__name__}` has no field `{WHOSE}`, by which the run knows which trajectories `{call.node.title}` leaves",
        where=at,
        label=f"least_kept={call.declaration.least_kept}: it takes groups apart",
        help=f"give `{given.__name__}` the field `{WHOSE}`",
    )


def refuse_hole(call: CallTracer, name: str, hole: Absent, at: Place, declared: Ref) -> None:
    """A hole is one mistake, however many calls read it."""
    if call.told(hole):
        return
    reader = _reader_name(call, name)
    call.refuse(
        "RLF008",
        f"nothing makes `{name}`, which {reader} reads",
        where=at,
        label=f"{reader} reads it here",
        related=(Label(hole.place, f"left out here: {hole.why}"), *labels(declared)),
        help=f"make `{name}` whenever {reader} is on, or switch {reader} off",
    )


def _reader_name(call: CallTracer, field: str) -> str:
    return next((f"`{type(loss).__name__}`" for loss in call.node.losses if field in reads_of(loss)), f"`{call.node.title}`")
