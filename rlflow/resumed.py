"""From a run's folder back to its pipeline, as it was told; and what has become of that pipeline since.

parameters.json ──▶ file, flags, swaps ──traced again──▶ plan ──compared──▶ plan.json of the run
                                                          │
                    as it is now differs:    refused, unless accepted        flags given now: meant
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import CycloptsError

from .compile.ir import Graph
from .compile.plan import Plan
from .errors import UsageError
from .flags import Command, command_of, parsed
from .language.diagnostic import CheckFailed
from .run.digests import digests
from .run.graph import GraphView
from .run.ledger import read_books
from .run.record import Ended, Options, Record, Told, plan_file, plan_of
from .run.runs import checkpoint_of
from .show.diff import as_text, diff

UNTRACED = ("at", "via", "declaration", "ignores")  # where things stand in a file


@dataclass(frozen=True, kw_only=True)
class Resumed(Command):
    """The pipeline of a run, with the flags that it was given."""

    folder: Path
    run_name: str  # of the run, as a person names it
    record: Record
    told_before: Told
    before: dict[str, Any] = field(default_factory=dict[str, Any])
    flags: tuple[str, ...] = ()  # of this resume, as given

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Of the pipeline; a default is what the run was given."""
        return {name: p.replace(default=self.before.get(name, p.default)) for name, p in super().parameters.items()}

    @functools.cached_property
    def plan_before(self) -> Plan:
        """What the run ran. Raises UsageError, or LedgerError, where that cannot be read."""
        return plan_of(plan_file(self.folder, max(read_books(self.folder).timelines, default=-1)))

    def changed_since(self) -> str:
        """What has changed in the pipeline since, its flags being the same; empty: nothing. Raises CheckFailed where it is refused now."""
        now = self._plan(self.before, self.told_before.swap, self.record.run)
        return difference(self.plan_before, now, (self.run_name, self.file))

    def plan_now(self, parameters: Mapping[str, Any], swap: Sequence[str], options: Options) -> tuple[Plan, Told]:
        """The plan with what is given now, and how it is told to the next resume. Raises CheckFailed."""
        given, swaps = {**self.before, **parameters}, swapped(self.told_before.swap, swap)
        return self._plan(given, swaps, options), self.as_told(given, swaps)

    def _plan(self, given: dict[str, Any], swap: Sequence[str], run: Options) -> Plan:
        return self.plan(given, swap, watermark=run.watermark, queue=run.queue, oversample=run.oversample)

    def nothing_left(self, options: Options) -> str | None:
        """Why the run does not go on, and what would make it; None: it does. Raises UsageError, LedgerError."""
        if options.steps < 1:
            raise UsageError(f"--steps {options.steps}: give at least 1")
        version, before = checkpoint_of(read_books(self.folder)), self.record.run
        ended = Ended.read(self.folder)
        is_over = ended is not None and ended.ended == "done" and (options.steps, options.epochs) == (before.steps, before.epochs)
        if not is_over and version < options.steps:
            return None
        again = f"rlflow resume {shlex.quote(self.run_name)}"
        if is_over and version < before.steps and before.epochs:  # the data has ended
            return f"{self.run_name} is done at version {version}; to go on, give it more epochs: {again} --epochs {before.epochs + 1}"
        more = 2 * max(before.steps, options.steps, version)
        done = "is done at" if is_over or version >= before.steps else f"would train nothing up to step {options.steps}: it is at"
        return f"{self.run_name} {done} version {version}; to go on, give it more steps: {again} --steps {more}"

    @property
    def way_to_accept(self) -> str:
        """What is said of a pipeline that has changed."""
        again = shlex.join(["rlflow", "resume", self.run_name, *self.flags])
        return (
            f"rlflow: this is not the pipeline that {self.run_name} was started with\n"
            f"   = help: put {self.file} back as it was, or go on with what it is now: {again} --accept"
        )

    def refuse_other_group_size(self, plan: Plan, given: Mapping[str, Any]) -> None:
        """Raises UsageError, by the flag, where a group would have another number of trajectories."""
        before, now = _group_size(self.plan_before), _group_size(plan)
        if before == now:
            return
        flag = self._flag_of_group_size(before, given) or f"n={now}"
        raise UsageError(
            f"{flag}: the groups of {self.run_name} have {before} trajectories each, and those that wait are trained: "
            "leave it out, or start another run"
        )

    def _flag_of_group_size(self, before: int, given: Mapping[str, Any]) -> str:
        """The one without which groups have the size that they had: the pipeline is traced without each. Empty: it is no single one."""
        for name, value in given.items():
            others = {other: given[other] for other in given if other != name}
            with suppress(CheckFailed, UsageError):
                if _group_size(self._plan({**self.before, **others}, self.told_before.swap, self.record.run)) == before:
                    return shlex.join(self.as_told({name: value}, ()).flags)
        return ""

    def changed_operators(self, plan: Plan) -> Iterator[str]:
        """What no graph shows: files of operators that are not what they were; a run from before that was noted tells nothing."""
        changed: dict[str, list[str]] = {}
        for operator, digest in digests(plan.graph).items():
            if self.record.operators.get(operator, digest) != digest:
                module, _, name = operator.partition(":")
                changed.setdefault(module, []).append(f"`{name}`")
        for module, names in changed.items():
            yield f"warning: {module} has changed since {self.run_name} was at work last, and it calls {', '.join(names)} of it"


def _group_size(plan: Plan) -> int:
    return int(GraphView(plan).dispatch.params["n"])


def folder_of(run: str, root: Path = Path("runs")) -> Path:
    """Of a run, by its path or by its name in `root`."""
    path = Path(run)
    return (path if path.is_dir() or not (root / run).is_dir() else root / run).resolve()


@contextmanager
def pipeline_of(run: str, root: Path = Path("runs"), flags: Sequence[str] = ()) -> Iterator[Resumed]:
    """The pipeline of a run, by its path or by its name in `root`. flags: of the resume, to be said again.

    Relative paths and modules are meanwhile those of the folder that it was started in.
    Raises UsageError for what is no run, and for a pipeline that is gone or does not take its flags any more.
    """
    folder = folder_of(run, root)
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
            folder=folder, run_name=run, record=record, told_before=told, before=_before(command, told, folder),
            flags=tuple(flags),
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
