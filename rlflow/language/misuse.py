"""What a record is not: a mapping, a container that is asked what it holds, a thing that is merged with another or written to.

batch["uid"] · "uid" in batch · batch | scores · batch.uid = ...     other frameworks hand batches about like this
Here which fields there are is known before the run, and each has one writer. Outside a pipeline Python's own errors are left alone.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from . import trace
from .diagnostic import CheckFailed, Diagnostic, Label, nearest
from .trace import Trace, Value

Write = Callable[[Any, str, Any], None]


class NoMapping:
    """Refuses `[...]`, `in` and `|` of a record in a pipeline."""

    if not TYPE_CHECKING:  # type checkers see these mistakes themselves

        def __getitem__(self, key: object) -> NoReturn:
            current, cls = trace.current(), type(self)
            if current is None:
                raise TypeError(f"{cls.__name__!r} object is not subscriptable: its fields are attributes")
            _item(cls, key, current, sys._getframe(1))

        def __contains__(self, key: object) -> NoReturn:
            current, cls = trace.current(), type(self)
            if current is None:
                raise TypeError(f"{cls.__name__!r} object is no container: its class says which fields it has")
            _probe(cls, key, current, sys._getframe(1))

        def __or__(self, other: object) -> Any:
            current = trace.current()
            if current is None or not isinstance(other, NoMapping):
                return NotImplemented
            return _union(type(self), type(other), current, sys._getframe(1))


def one_writer(write: Write) -> Write:
    """A frozen dataclass's `__setattr__`, which also tells a pipeline who has written the field."""

    def refuse(record: object, name: str, value: object) -> None:
        current = trace.current()
        if current is None:
            return write(record, name, value)
        raise CheckFailed([_second_writer(record, name, current, sys._getframe(1))])

    return refuse


def unknown(owner: str, what: str, name: str, known: list[str], current: Trace, frame: FrameType) -> NoReturn:
    """Refuse a name that a record, worker or feedback does not have: the near miss, and all that there are."""
    raise CheckFailed(
        [
            Diagnostic(
                code="RLF001",
                message=f"{owner} has no {what} `{name}`{nearest(name, known)}",
                where=current.caller(frame)[0].place,
                notes=(listed(known),),
                help=INSTEAD.get(name) if what == "field" else None,
            )
        ]
    )


_MERGE = "records are not merged: put one together, field by field"
_PICK = "a record is handed on as it is: only what somebody reads is sent"
_NAMES = "its fields are attributes, and its class says which there are"
INSTEAD = {  # a method of other frameworks' batches → what is done here
    **dict.fromkeys(("union", "merge", "update"), _MERGE),
    **dict.fromkeys(("select", "pop", "exclude"), _PICK),
    **dict.fromkeys(("keys", "items", "values", "get"), _NAMES),
}


def listed(names: list[str]) -> str:
    """`it has `a`, `b``, for a note."""
    return "it has " + ", ".join(f"`{n}`" for n in names)


def _names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _item(cls: type, key: object, current: Trace, frame: FrameType) -> NoReturn:
    names = _names(cls)
    near = "" if key in names else nearest(str(key), names)
    raise CheckFailed(
        [
            Diagnostic(
                code="RLF001",
                message=f"`{cls.__name__}` has no item {key!r}{near}",
                where=current.caller(frame)[0].place,
                label="the fields of a record are attributes",
                notes=(listed(names),),
                help=f"write `.{key}`" if key in names else None,
            )
        ]
    )


def _probe(cls: type, key: object, current: Trace, frame: FrameType) -> NoReturn:
    names = _names(cls)
    known = f"`{key}` is one of them" if key in names else f"`{key}` is none of them{nearest(str(key), names)}"
    raise CheckFailed(
        [
            Diagnostic(
                code="RLF006",
                message=f"a pipeline cannot ask a `{cls.__name__}` which fields it holds",
                where=current.caller(frame)[0].place,
                label="its class says so",
                notes=(f"{listed(names)}; {known}",),
                help='branch on the parameter that decides it, and say where a field is left out: `absent("why")`',
            )
        ]
    )


def _union(one: type, two: type, current: Trace, frame: FrameType) -> NoReturn:
    both = [f"`{name}`" for name in _names(one) if name in _names(two)]
    raise CheckFailed(
        [
            Diagnostic(
                code="RLF007",
                message=f"a pipeline cannot merge `{one.__name__}` and `{two.__name__}`",
                where=current.caller(frame)[0].place,
                notes=(f"both have {', '.join(both)}: which of the two would be trained on?",) if both else (),
                help=f"`class Both({one.__name__}, {two.__name__}): ...`, put together field by field",
            )
        ]
    )


def _second_writer(record: object, name: str, current: Trace, frame: FrameType) -> Diagnostic:
    names, title = _names(type(record)), type(record).__name__
    if name not in names:
        message = f"`{title}` has no field `{name}`{nearest(name, names)}"
        more = f"`class More({title}): {name}: ...`, put together with all of its fields"
        return Diagnostic(code="RLF001", message=message, where=current.caller(frame)[0].place, notes=(listed(names),), help=more)
    old = getattr(record, name)
    first = (Label(trace.field_of(old).node.call.place, f"`{name}` comes from here"),) if isinstance(old, Value) else ()
    return Diagnostic(
        code="RLF201",
        message=f"`{name}` of a `{title}` has a writer already",
        where=current.caller(frame)[0].place,
        label="a second one",
        related=first,
        notes=("whoever was given the record before would read one value, whoever is given it later another",),
        help=f"put another `{title}` together, with the other field in place of this one",
    )
