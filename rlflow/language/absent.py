"""`absent("kl is 0")`: the field that this variant of a pipeline leaves out. It may be passed on; whoever reads it is refused (RLF008)."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, NoReturn

from . import source, trace
from .diagnostic import CheckFailed, Diagnostic, Label
from .source import Place


@dataclasses.dataclass(frozen=True, eq=False)
class Absent:
    """A hole: why it is there, and where that was said."""

    why: str
    place: Place

    def __bool__(self) -> NoReturn:
        self._refuse(
            "RLF006",
            "a pipeline cannot branch on a field that is left out",
            "branch on the parameter that leaves it out",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse("RLF008", f"nothing makes the field whose `.{name}` is asked for", MAKE)

    def _used(self, *_: object) -> NoReturn:
        self._refuse("RLF008", "nothing makes the field that is computed with", MAKE)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _used
    __getitem__ = __iter__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = _used

    def _refuse(self, code: str, message: str, help: str) -> NoReturn:
        where = trace.here(sys._getframe(2))
        raise CheckFailed(
            [
                Diagnostic(
                    code=code,
                    message=message,
                    where=source.branch(where) if code == "RLF006" else where,
                    related=(Label(self.place, f"left out here: {self.why}"),),
                    help=help,
                )
            ]
        )


MAKE = "make it in this variant too, or leave out what uses it"


def absent(why: str) -> Any:
    """A field that this variant of the pipeline does not make. Passing it on is fine, reading it is an error."""
    return Absent(why, trace.here(sys._getframe(1)))
