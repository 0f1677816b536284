"""From a pipeline file to a function whose signature is the command line."""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CoercionError, Parameter, Token, convert

from .compile.plan import Plan
from .errors import UsageError
from .language.loss import Loss
from .language.options import flat_parameters, gathered
from .language.spec import arms_of, metadata_of
from .modules import load_file, set_aside, users_code
from .named import function_of, loss_of, name_of
from .run.record import Told


@dataclass(frozen=True)
class Command:
    """One pipeline of one file."""

    file: str
    pipeline: Callable[..., Plan]
    modules: tuple[tuple[str, str], ...]
    refs: dict[int, str] = field(default_factory=dict[int, str])  # id of a function or loss that a flag named -> how it named it

    @property
    def name(self) -> str:
        """Of the pipeline function."""
        return self.pipeline.__name__

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Of the pipeline, with resolved types; of its options, each field."""
        return flat_parameters(self.pipeline)

    def value(self, name: str, value: Any) -> Any:
        """Of a parameter, from its flag."""
        read = _reader_of(self.parameters[name])
        if read is None or not isinstance(value, str):
            return value
        found = read(value, f"--{name.replace('_', '-')}")
        self.refs[id(found)] = value
        return found

    def plan(
        self, parameters: dict[str, Any], swap: Sequence[str] = (), *, watermark: int = 0, queue: int = 0, oversample: int = 0
    ) -> Plan:
        """The checked plan for a schedule: see `Plan.scheduled`.

        Raises CheckFailed, and UsageError for a pipeline that raises while it is traced.
        """
        with users_code(self.file), redirect_stdout(sys.stderr):
            plan = self.pipeline(**gathered(self.pipeline, parameters))
        for one in swap:
            name, sign, ref = one.partition("=")
            if not sign:
                raise UsageError(f"--swap {one}: write NAME=module:function, e.g. grpo=operators.advantage:rloo")
            other = function_of(ref, f"--swap {one}")
            with users_code(f"--swap {one}"), redirect_stdout(sys.stderr):
                plan = plan.replace(name, other)
        return plan.scheduled(watermark=watermark, queue=queue, oversample=oversample)

    def told(self, given: Mapping[str, Any], swap: Sequence[str]) -> str:
        """Its part of the command line."""
        flags = [token for name, value in given.items() for token in _tokens(name, value, self.refs)]
        return shlex.join([self.file, *flags, *(token for one in swap for token in ("--swap", one))])

    def as_told(self, given: Mapping[str, Any], swap: Sequence[str]) -> Told:
        """The same, to be read again."""
        flags = tuple(token for name, value in given.items() for token in _tokens(name, value, self.refs))
        file = str(Path(self.file.partition(":")[0]).resolve())
        return Told(cwd=str(Path.cwd()), file=file, pipeline=self.name, flags=flags, swap=tuple(swap))


def commands_of(a: str, b: str) -> tuple[Command, Command]:
    """Two pipelines, also of two files that are one module: those of two checkouts."""
    first = command_of(a)
    with set_aside(first.modules, Path(b.partition(":")[0])):
        return first, command_of(b)


def command_of(file: str) -> Command:
    """The pipeline of `FILE.py`, or of `FILE.py:name` where a file has several. Raises UsageError."""
    path, _, name = file.partition(":")
    with redirect_stdout(sys.stderr):  # what a file prints is no part of what a command says
        module, modules = load_file(Path(path))
    found = {k: v for k, v in vars(module).items() if _makes_a_plan(v) and v.__module__ == module.__name__}
    if not found:
        raise UsageError(f"{path} has no pipeline: put @pipeline on a function, or let one return the `Plan` of another")
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        which = f"no pipeline `{name}`" if name else f"{len(found)} pipelines"
        raise UsageError(f"{path} has {which}: write {' or '.join(f'{path}:{one}' for one in found)}")
    return Command(file, found[name], modules)


def parsed(command: Command, tokens: Sequence[str]) -> dict[str, Any]:
    """Values of a pipeline's parameters, from its flags alone. Raises CycloptsError, or UsageError."""
    found: dict[str, Any] = {}

    def keep(_: Command, parameters: dict[str, Any]) -> int:
        found.update(parameters)
        return 0

    invoke(app_of(command.name, "", with_flags(keep, {"": command})), tokens)
    return found


def app_of(name: str, about: str, body: Callable[..., object]) -> App:
    """A command line of one function."""
    one = App(name=name, help=about, help_format="plaintext", version_flags=[], suppress_keyboard_interrupt=False)
    one.default(body)
    return one


def invoke(one: App, tokens: Sequence[str]) -> int:
    """What the function returns for these tokens, None as 0. Raises CycloptsError for what it does not take."""
    return int(one(tokens, exit_on_error=False, print_error=False, result_action="return_value") or 0)


def with_flags(body: Callable[..., int], commands: Mapping[str, Command], reserved: Collection[str] = ()) -> Callable[..., int]:
    """`body(command, parameters, ..., *, options)` with the pipelines' parameters and its own options as flags.

    commands: by what the flags of their parameters begin with; `{"": grpo}` is `--kl`, `{"a": grpo, "b": ppo}` is `--a.kl` and `--b.kl`.
    reserved: names of options of other commands that take the same parameters.
    Raises UsageError where a parameter has the name of an option.
    """
    options = options_of(body)
    for command in (command for prefix, command in commands.items() if not prefix):
        if clash := sorted(command.parameters.keys() & {*reserved, *(p.name.rstrip("_") for p in options)}):
            raise UsageError(f"{command.file}: the pipeline's parameter `{clash[0]}` has the name of an option of rlflow: rename it")
    flags = [_flag(p, prefix, command.refs) for prefix, command in commands.items() for p in command.parameters.values()]

    def call(**given: Any) -> int:
        told: list[Any] = []
        for prefix, command in commands.items():
            keys = {name: _key(prefix, name) for name in command.parameters}
            told += [command, {name: command.value(name, given.pop(key)) for name, key in keys.items() if key in given}]
        return body(*told, **given)

    call.__signature__ = inspect.Signature([*flags, *options])  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in (*flags, *options)}
    call.__doc__ = body.__doc__
    return call


def options_of(body: Callable[..., int]) -> list[inspect.Parameter]:
    """The flags of a command itself."""
    hints = typing.get_type_hints(body, include_extras=True)
    return [p.replace(annotation=hints[n]) for n, p in inspect.signature(body).parameters.items() if p.kind is p.KEYWORD_ONLY]


def _makes_a_plan(found: Any) -> bool:
    """A pipeline, or a function `-> Plan` that calls one: with other defaults, a reward of its own, a replacement."""
    plain = inspect.isfunction(found) and found.__annotations__.get("return") in (Plan, "Plan") and not found.__name__.startswith("_")
    return plain or hasattr(found, "__rlflow_pipeline__")


def _tokens(name: str, value: Any, refs: Mapping[int, str]) -> list[str]:
    """A parameter as flags of the command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list | tuple):
        return [token for item in value for token in _tokens(name, item, refs)] or [f"--empty-{flag[2:]}"]
    said = _said(value, refs) if callable(value) else str(value)
    return [f"{flag}={said}"] if said.startswith("-") else [flag, said]


def _said(value: Any, refs: Mapping[int, str]) -> str:
    """A function or a loss as a flag named it, or as its module does."""
    return refs.get(id(value)) or name_of(value)


def _reader_of(parameter: inspect.Parameter) -> Callable[[str, str], Any] | None:
    """What reads it, where its flag names a function or a loss: by its default, or where that is None by its type, `RewardFn | None`."""
    default = parameter.default
    if default is not None:
        is_function = callable(default) and not isinstance(default, type)
        return loss_of if isinstance(default, Loss) else function_of if is_function else None
    arms = arms_of(parameter.annotation)
    if any((typing.get_origin(arm) or arm) is Loss for arm in arms):
        return loss_of
    is_function = any(typing.get_origin(arm) is Callable or getattr(arm, "_is_protocol", False) for arm in arms)
    return function_of if is_function else None


def _whole(hint: Any, tokens: Sequence[Token]) -> Any:
    """A number as cyclopts reads it, unless it would be cut: 1.5 is no count. Raises ValueError."""
    said = tokens[0].value
    try:
        found = convert(hint, [said])
    except CoercionError:
        raise ValueError(f'unable to convert "{said}" into int.') from None
    if "." in said and float(said) != found:
        raise ValueError(f"{said} is no whole number")
    return found


def _key(prefix: str, name: str) -> str:
    return f"{prefix}__{name}" if prefix else name


def _flag(parameter: inspect.Parameter, prefix: str, refs: Mapping[int, str]) -> inspect.Parameter:
    """A keyword flag; a function is named as module:function, a loss as module:class. Its help is a text among its `Annotated[...]`."""
    said = next((extra for extra in metadata_of(parameter.annotation) if isinstance(extra, str)), "")
    parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    if (read := _reader_of(parameter)) is not None:
        said = f"{'module:class' if read is loss_of else 'module:function'}{', ' * bool(said)}{said}"
        parameter = parameter.replace(annotation=str | None, default=None if parameter.default is None else _said(parameter.default, refs))
    if int in (arms := arms_of(parameter.annotation)) and not {float, str} & {*arms}:
        parameter = parameter.replace(annotation=Annotated[parameter.annotation, Parameter(converter=_whole)])
    if said:
        parameter = parameter.replace(annotation=Annotated[parameter.annotation, Parameter(help=said)])
    if not prefix:
        return parameter
    flag = parameter.name.replace("_", "-")
    told = Parameter(name=f"--{prefix}.{flag}", negative=f"--{prefix}.no-{flag}" if isinstance(parameter.default, bool) else ())
    return parameter.replace(name=_key(prefix, parameter.name), annotation=Annotated[parameter.annotation, told])
