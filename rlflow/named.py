"""What a flag or a swap names: `module:name`, or `module:name(option=value, ...)` with options of its own.

    operators.advantage:rloo                          a function of operators
    operators.advantage:grpo(scale_by_std=False)      a partial of one
    operators.loss:gspo                               a loss, its options as they are by default
    operators.loss:ppo_clip(0.2, clip_high=0.28)      a loss with these
    my_file:MY_LOSS                                   a loss that a module holds

Options are literals: nothing that is written there runs.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UsageError
from .language.config import ref_of, resolve
from .language.hints import arguments_of
from .language.loss import Loss
from .modules import dotted, users_code


class _Named(NamedTuple):
    ref: str
    called: bool
    args: tuple[Any, ...]
    options: dict[str, Any]


def function_of(said: str, where: str) -> Any:
    """The function of operators that is named. Raises UsageError, with `where`, for what is not there and for what is no function."""
    named = _read(said, where, "operators.advantage:rloo")
    found = _found(named, where)
    if not inspect.isfunction(found) and not isinstance(found, functools.partial):
        raise UsageError(f"{where}: `{named.ref}` is a {type(found).__name__}, no function of operators")
    if named.args:
        raise UsageError(f"{where}: name the options of `{named.ref}`, as in {named.ref}(option={named.args[0]!r})")
    if named.called:
        _refuse_misfit(inspect.signature(found).bind_partial, named, inspect.signature(found), where)
        return functools.partial(found, **named.options)
    return found


def loss_of(said: str, where: str) -> Loss[Any, Any]:
    """The loss that is named. Raises UsageError, with `where`, for what is not there, no loss, or not of these options."""
    named = _read(said, where, "operators.loss:ppo_clip")
    found = _found(named, where)
    if isinstance(found, Loss) and not named.called:
        return found
    if not (isinstance(found, type) and issubclass(found, Loss)):
        raise UsageError(f"{where}: `{named.ref}` is a {type(found).__name__}, no class of losses")
    _refuse_misfit(inspect.signature(found).bind, named, inspect.signature(found), where)
    try:
        return found(*named.args, **named.options)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def name_of(value: Any) -> str:
    """How a flag would name a function or a loss; of a loss, with the options that are not as by default."""
    if isinstance(value, Loss):
        told = [(f.name, getattr(value, f.name), f.default) for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        return _said(_short(type(value)), {name: given for name, given, default in told if given != default})
    return _said(_short(value.func), value.keywords) if isinstance(value, functools.partial) else _short(value)


def _short(value: Any) -> str:
    """`operators.loss:ppo_clip`, where that package hands on what a module in it defines."""
    module, _, name = ref_of(value).partition(":")
    parts = module.split(".")
    packages = (".".join(parts[:n]) for n in range(1, len(parts)))
    return f"{next((p for p in packages if getattr(sys.modules.get(p), name, None) is value), module)}:{name}"


def _said(ref: str, options: dict[str, Any]) -> str:
    return ref + (f"({', '.join(f'{name}={value!r}' for name, value in options.items())})" if options else "")


def _read(said: str, where: str, example: str) -> _Named:
    ref, bracket, rest = said.partition("(")
    if ":" not in ref:
        raise UsageError(f"{where}: {said!r} is no module:function, e.g. {example}")
    _refuse_file(ref, where)
    if not bracket:
        return _Named(ref, False, (), {})
    try:
        call = ast.parse(f"_({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        options = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
        return _Named(ref, True, tuple(ast.literal_eval(arg) for arg in call.args), options)
    except (SyntaxError, ValueError):
        raise UsageError(f"{where}: ({rest} holds no options: give literals, as in (clip_high=0.28)") from None


def _refuse_file(ref: str, where: str) -> None:
    """A file is named where a module is asked for: every process of a run imports it by its name."""
    path, _, name = ref.rpartition(":")
    if path.endswith(".py"):
        file = Path(path).resolve()
        module = dotted(file)
        root = file.parents[module.count(".")]
        beside = "" if root == Path.cwd() else f", with PYTHONPATH={root}"
        raise UsageError(f"{where}: {path} is a file; name its module: {module}:{name}{beside}")


def _found(named: _Named, where: str) -> Any:
    try:
        with users_code(where), redirect_stdout(sys.stderr):  # what its module prints is no part of what a command says
            return resolve(named.ref)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _refuse_misfit(bind: Any, named: _Named, signature: inspect.Signature, where: str) -> None:
    try:
        bind(*named.args, **named.options)
    except TypeError as error:
        raise UsageError(f"{where}: {error}; it is {named.ref}({arguments_of(signature)})") from None
