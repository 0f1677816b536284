"""From a run's folder back to its pipeline, as it was told; and what has become of that pipeline since.

parameters.json ──▶ file, flags, swaps ──traced again──▶ plan ──compared──▶ plan.json of the run
                                                          │
                    as it is now differs:    refused, unless accepted        flags given now: meant
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import CycloptsError

from .compile.ir import Graph
from .compile.plan import Plan
from .errors import UsageError
from .flags import Command, command_of, parsed
from .run.record import Record, Told
from .show.diff import as_text, diff

UNTRACED = ("at", "via", "declaration", "ignores")  # where things stand in a file
PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Resumed(Command):
    """The pipeline of a run, with the flags that it was given."""

    folder: Path
    record: Record
    told_before: Told
    before: dict[str, Any] = field(default_factory=dict[str, Any])

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Of the pipeline; a default is what the run was given."""
        return {name: p.replace(default=self.before.get(name, p.default)) for name, p in super().parameters.items()}


def folder_of(run: str, root: Path = Path("runs")) -> Path:
    """Of a run, by its path or by its name in `runs/`."""
    path = Path(run)
    return (path if path.is_dir() or not (root / run).is_dir() else root / run).resolve()


@contextmanager
def pipeline_of(folder: Path) -> Iterator[Resumed]:
    """The pipeline of a run; relative paths and modules are meanwhile those of the folder that it was started in.

    Raises UsageError for what is no run, and for a pipeline that is gone or does not take its flags any more.
    """
    record = Record.read(folder)
    told = record.told
    if told is None:
        raise UsageError(f"{folder} was started from Python, not by `rlflow run`: no command is known that traces its pipeline again")
    for path, what in ((told.cwd, "was started in"), (told.file, f"runs `{told.pipeline}` of")):
        if not Path(path).exists():
            raise UsageError(f"{folder} {what} {path}, which is gone: put it back, or start another run")
    here = Path.cwd()
    os.chdir(told.cwd)
    if told.cwd not in sys.path:
        sys.path.append(told.cwd)
    try:
        command = command_of(f"{os.path.relpath(told.file)}:{told.pipeline}")
        yield Resumed(
            command.file, command.pipeline, command.modules, command.refs,
            folder=folder, record=record, told_before=told, before=_before(command, told, folder),
        )  # fmt: skip
    finally:
        os.chdir(here)


def _before(command: Command, told: Told, folder: Path) -> dict[str, Any]:
    try:
        return parsed(command, told.flags)
    except (UsageError, CycloptsError) as error:
        taken = f"which `{told.pipeline}` of {told.file} does not take any more"
        raise UsageError(f"{folder} was started with {' '.join(told.flags)}, {taken}: {error}") from None


def swapped(before: Sequence[str], now: Sequence[str]) -> tuple[str, ...]:
    """NAME=module:function; what is said now of a name replaces what was said before."""
    return tuple(({one.partition("=")[0]: one for one in before} | {one.partition("=")[0]: one for one in now}).values())


def plan_of(folder: Path) -> Plan:
    """What the run runs. Raises UsageError where that cannot be read."""
    try:
        return Plan.from_json((folder / PLAN).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder / PLAN} cannot be read: {error}") from None


def difference(before: Plan, now: Plan, names: tuple[str, str]) -> str:
    """What changed from one plan to another, as text; empty where they run the same, wherever it stands in their files."""
    found = diff(before, now, names)
    if not found.same:
        return as_text(found)
    where = _first_unlike(_bare(before.graph), _bare(now.graph))
    return f"{names[0]} → {names[1]}\n\ngraph\n  ~ {where}" if where else ""


def _bare(graph: Graph) -> Any:
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: bare(item) for key, item in value.items() if key not in UNTRACED}
        return [bare(item) for item in value] if isinstance(value, list | tuple) else value

    return bare(msgspec.to_builtins(graph, enc_hook=str, str_keys=True))


def _first_unlike(a: Any, b: Any, path: str = "") -> str:
    """`nodes.3.order: ... → ...`; empty where they are equal."""
    if a == b:
        return ""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return next(found for key in a if (found := _first_unlike(a[key], b[key], f"{path}.{key}".lstrip("."))))
    return f"{path}: {a} → {b}"
