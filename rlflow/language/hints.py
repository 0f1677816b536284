"""The types in a signature, as objects: what is checked of an operator, and of a pipeline's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from . import source
from .diagnostic import CheckFailed, Diagnostic
from .spec import unalias


@functools.cache
def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Types of parameters and result. Raises CheckFailed (RLF012) when a name in them does not exist at run time."""
    try:
        return {name: unalias(hint) for name, hint in get_type_hints(fn, include_extras=True).items()}
    except NameError as error:
        raise CheckFailed([_unknown_name(fn, error)]) from error


def arguments_of(signature: inspect.Signature) -> str:
    """The parameters as a call would give them: `prompts, n=8`."""
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)


def _unknown_name(fn: Callable[..., Any], error: NameError) -> Diagnostic:
    annotations = {n: str(a) for n, a in fn.__annotations__.items()}
    param = next((n for n, a in annotations.items() if error.name and error.name in a), "")
    return Diagnostic(
        code="RLF012",
        message=f"`{error.name}` in the signature of `{fn.__name__}` does not exist at run time",
        where=source.declared_at(fn, param),
        label="named here",
        notes=("the signature is what is checked, so its types must be importable",),
        help=f"import `{error.name}` outside of `if TYPE_CHECKING:`",
    )
