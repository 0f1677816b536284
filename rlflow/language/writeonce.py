"""Write-once: an operator, or a loss, reads what it is given and returns what it owns; it changes nothing that it was given.

    hold        before the call: a tensor's version counter, a shallow copy of a list or a dict, a digest of a numpy array
    settle      after it: what has changed is an OperatorError that names operator, input and fix
    not_owned   in debug: so is a result in the memory of an input

The version counter costs about a microsecond a tensor and is always compared. It does not see a write through `.data`,
`.numpy()` or a kernel of one's own. So in debug runs (`rlflow run --debug`, which sets RLFLOW_DEBUG=1) and in all of our
tests contents are compared as well, by digest, and a result that shares memory with an input is refused: the input may be
freed while the result is still read. Rows that a row operator hands on (`-> RowsT`) are the same fields, and may be shared.

No torch is imported here: an input's type says what it is.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from ..errors import OperatorError
from .body import place_of

VARIABLE = "RLFLOW_DEBUG"
debug = os.environ.get(VARIABLE, "") not in ("", "0")  # worker processes inherit it

Kind = Literal["tensor", "array", "list", "dict", "tuple", "record", "micro", "plain"]
KINDS: dict[str, Kind] = {"torch.Tensor": "tensor", "numpy.ndarray": "array"}
KINDS |= {"builtins.list": "list", "builtins.dict": "dict", "builtins.tuple": "tuple"}
KINDS |= {"rlflow.language.record.Record": "record", "rlflow.language.loss.Micro": "micro", "rlflow.language.loss.Objective": "micro"}
KINDS |= {f"rlflow.engines.train.{name}": "record" for name in ("packed.PackedRows", "context.ContextRows")}
COPY = {"tensor": ".clone()", "array": ".copy()", "list": ".copy()", "dict": ".copy()"}
Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Held(NamedTuple):
    """One input as it was before the call."""

    argument: int | str  # by position or by keyword
    inside: str  # "" or where in the argument: ".advantages", ".parts[0][1].advantages"
    value: Any
    kind: Kind
    mark: Any


def hold(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Held]:
    """What could be written into, before the call."""
    held: list[Held] = []
    for i, value in enumerate(args):
        _hold(held, i, "", value)
    for name, value in kwargs.items():
        _hold(held, name, "", value)
    return held


def settle(fn: Function, held: Iterable[Held]) -> None:
    """Raises OperatorError if `fn` has changed an input."""
    for one in held:
        if _changed(one):
            raise OperatorError(_wrote(fn, one))


def not_owned(fn: Function, held: Iterable[Held], result: Any) -> str | None:
    """What is wrong with a result that shares memory with an input; None if none does."""
    given = [(one, _memory(one.value, one.kind)) for one in held]
    new = vars(result) if _kind_of(result) == "record" else {"": result}
    for name, value in new.items():
        memory = _memory(value, _kind_of(value))
        shared = next((one for one, there in given if memory and there and memory[0] < there[1] and there[0] < memory[1]), None)
        if shared is not None:
            return _returned(fn, shared, name)
    return None


def guarded(fn: F) -> F:
    """A method of a loss, `fn(self, forward, rows)`, that may not write into what the forward yields or the rows hold."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        held: list[Held] = []
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for argument, value in given:
            for name, one in _attributes(value):
                _hold(held, argument, f".{name}", one)
        result = fn(*args, **kwargs)
        settle(fn, held)
        return result

    return call  # type: ignore[return-value]


# --- what is held ---------------------------------------------------------------------------------------------------------------------
@functools.cache
def _kind(cls: type[Any]) -> Kind:
    for base in cls.__mro__:
        if (kind := KINDS.get(f"{base.__module__}.{base.__qualname__}")) is not None:
            return kind
    return "plain"


def _kind_of(value: object) -> Kind:
    return _kind(type(value))  # type: ignore[arg-type]


def _hold(held: list[Held], argument: int | str, inside: str, value: Any) -> None:
    kind = _kind_of(value)
    if kind == "plain":
        return
    if kind in COPY:
        held.append(Held(argument, inside, value, kind, _mark(value, kind)))
    for name, one in _parts(value, kind):
        _hold(held, argument, inside + name, one)


def _parts(value: Any, kind: Kind) -> Iterator[tuple[str, Any]]:
    """What an input is made of, with the way there."""
    if kind == "record":
        yield from ((f".{name}", one) for name, one in vars(value).items())
    elif kind == "micro":
        yield ".rows", value.rows
        yield ".parts", value.parts
    elif kind in ("list", "tuple") and value and _kind_of(value[0]) != "plain":  # text is told by its first row
        yield from ((f"[{i}]", one) for i, one in enumerate(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What a loss can read of an argument: public attributes, those of a record behind it included."""
    for name, one in getattr(value, "__dict__", {}).items():
        if not name.startswith("_"):
            yield name, one
        elif _kind_of(one) == "record":
            yield from _attributes(one)


def _mark(value: Any, kind: Kind) -> Any:
    if kind == "tensor":
        return _version(value), _content(value) if debug else None
    if kind == "array":
        return _digest(value)
    return value.copy()


def _changed(held: Held) -> bool:
    value, mark = held.value, held.mark
    if held.kind in ("tensor", "array"):
        return bool(_mark(value, held.kind) != mark)
    if held.kind == "dict":
        return not (_same(value, mark) and _same(value.values(), mark.values()))
    return not _same(value, mark)


def _same(one: Any, two: Any) -> bool:
    """The very same items, in the same order. (Tensors do not compare by `==`.)"""
    return len(one) == len(two) and all(a is b for a, b in zip(one, two, strict=True))


def _version(tensor: Any) -> int:
    """How often it, or the memory that it is a view of, was written in place."""
    try:
        return int(tensor._version)
    except RuntimeError:  # made under inference_mode: it has no counter; its content is compared in debug
        return 0


def _content(tensor: Any) -> bytes | None:
    """Digest of a dense tensor on any device, NaN and all."""
    import torch  # it is imported already: there is a tensor

    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return None
    plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # a copy: an expanded view cannot be seen as bytes
    return _digest(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else None


def _digest(array: Any) -> bytes:
    if array.dtype == object:
        return repr(array.tolist()).encode()
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()


# --- where it lies --------------------------------------------------------------------------------------------------------------------
def _memory(value: Any, kind: Kind) -> tuple[int, int] | None:
    """First byte and the byte behind the last of what a value is stored in; None for nothing, or nothing that is known."""
    if kind == "tensor":
        if str(value.layout) != "torch.strided" or not value.numel():
            return None
        storage = value.untyped_storage()
        return (storage.data_ptr(), storage.data_ptr() + storage.nbytes()) if storage.data_ptr() else None
    if kind == "array":
        while _kind_of(value.base) == "array":
            value = value.base
        start = value.__array_interface__["data"][0]
        return (start, start + value.nbytes) if value.nbytes else None
    return (id(value), id(value) + 1) if kind in COPY and value else None


# --- what is said ---------------------------------------------------------------------------------------------------------------------
def _wrote(fn: Function, held: Held) -> str:
    name = _name(fn, held)
    return (
        f"{_title(fn)} wrote into its input `{name}`: every other reader of that field would see the change. "
        f"Write to a copy: `{_variable(name)} = {name}{COPY[held.kind]}`"
    )


def _returned(fn: Function, held: Held, result: str) -> str:
    name, what = _name(fn, held), f"`{result}`" if result else "its result"
    return (
        f"{_title(fn)} returns memory of its input `{name}` as {what}: an operator returns only what it owns, "
        f"for an input may be freed while the result is still read. Return a copy: `{name}{COPY[held.kind]}`"
    )


def _title(fn: Function) -> str:
    return f"`{fn.__qualname__.rpartition('<locals>.')[2].removesuffix('.__call__')}` ({place_of(fn)})"


def _name(fn: Function, held: Held) -> str:
    return f"{_parameter(fn, held.argument)}{held.inside}"


def _parameter(fn: Function, argument: int | str) -> str:
    """The parameter that an argument went to."""
    if isinstance(argument, str):
        return argument
    parameters = list(inspect.signature(fn).parameters.values())
    return next((p.name for p in parameters[: argument + 1] if p.kind is p.VAR_POSITIONAL), None) or parameters[argument].name


def _variable(name: str) -> str:
    """A name for the copy: `advantages` of `rows.advantages`."""
    last = name.rpartition(".")[2].partition("[")[0]
    return last if last.isidentifier() else "copy"
