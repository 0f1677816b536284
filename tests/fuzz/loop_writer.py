"""Writes calls of a generated loop: by position or by keyword, in any order, under new names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from loop_model import OPS, RECORDS, SAMPLE, Arg, Call, Column, Line, Op, Program, Raw, Rows, Weights, Whole

X = TypeVar("X")


class Choose(Protocol):
    """Where the randomness comes from: hypothesis, or a seeded generator."""

    def one(self, options: Sequence[X]) -> X: ...

    def order(self, options: Sequence[X]) -> list[X]: ...


class Writer:
    """Adds lines to a program: what a call looks like is drawn, what it is given is told."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.program = Program({}, [])
        self.names: set[str] = set()

    # --- drawing ------------------------------------------------------------------------------------------------------
    def maybe(self, often: int = 2) -> bool:
        """True once in `often` times."""
        return self.choose.one(range(often)) == 0

    def name(self, *wanted: str) -> str:
        """A new variable."""
        first = self.choose.one(wanted)
        found = next(n for n in (first, *(f"{first}_{i}" for i in range(2, 99))) if n not in self.names)
        self.names.add(found)
        return found

    # --- writing ------------------------------------------------------------------------------------------------------
    def add(self, what: str, call: Call, target: str | None = None, makes: Iterable[Column] = ()) -> Line:
        line = Line(what, call, target, list(makes))
        self.program.body.append(line)
        return line

    def arguments(self, op: Op, given: dict[str, Column], before: list[Arg], after: list[Arg]) -> list[Arg]:
        """A prefix by position, the rest by keyword in any order."""
        plain = [Arg(name, given[name]) for name in op.takes if name in given and name not in op.optional]
        named = [Arg(name, given[name], keyword=True) for name in op.optional if name in given]
        cut = self.choose.one([len(plain), len(plain), *range(len(plain))])
        for arg in plain[cut:]:
            arg.keyword = True
        return [*before, *plain[:cut], *self.choose.order([*plain[cut:], *named, *after])]

    def apply(
        self,
        name: str,
        given: dict[str, Column],
        target: Sequence[str],
        *,
        worker: str | None = None,
        weights: str | None = None,
        config: Sequence[Arg] = (),
        what: str | None = None,
    ) -> dict[str, Column]:
        """Write `target = name(...)`, and return the columns that it makes: by field, or under "" for a single one."""
        op = OPS[name]
        before = [] if weights is None else [Arg("weights", Weights(weights))]
        args = self.arguments(op, given, before, list(config))
        fn = name if worker is None else f"{worker}.{name}"
        call = Call(fn, args, {k: v for k, v in op.takes.items() if k in given}, op.per)
        rows = next(iter(given.values())).rows
        if op.gives is None:
            self.add(what or name, call)
            return {}
        variable = self.name(*target)
        if isinstance(op.gives, str):
            made = {"": Column(variable, op.gives, rows)}
        else:
            made = {field: Column(f"{variable}.{field}", kind, rows) for field, kind in op.gives.items()}
        self.add(what or name, call, variable, made.values())
        return made

    def row_operator(
        self,
        name: str,
        record: Whole,
        how: str,
        given: dict[str, Column] | None = None,
        *,
        size: int | None = None,
        multiple: int = 1,
        config: Sequence[Arg] = (),
        target: Sequence[str] = ("ready", "kept", "chosen"),
    ) -> Whole:
        """Write `target = name(record, ...)`: the same fields on other rows."""
        scope = {"form": "batch", "shard": "shard", "pack": "micro"}.get(how, record.rows.scope)
        rows, variable = Rows(scope, how, record.rows, size, multiple), self.name(*target)
        takes = OPS[name].takes if name in OPS else {}
        args = [Arg("rows", record), *(Arg(param, column) for param, column in (given or {}).items()), *config]
        per = "group" if how in ("filter", "form") else "batch"
        fields = {field: Column(f"{variable}.{field}", column.kind, rows) for field, column in record.fields.items()}
        makes = fields.values() if how != "pack" else []
        self.add(name, Call(name, args, takes, per), variable, makes)
        return Whole(variable, fields, rows)

    def put_together(self, cls: str, bases: list[str], columns: dict[str, Column], holes: dict[str, str] | None = None) -> Whole:
        """Write a record, its class included. holes: fields that this variant does not make."""
        self.program.records[cls] = self.choose.order(bases)
        variable = self.name("rows", "joined")
        kinds = {field: kind for base in bases for field, kind in (SAMPLE if base == "Sample" else RECORDS[base]).items()}
        args: list[Arg] = []
        for field in self.choose.order(list(kinds)):
            hole = (holes or {}).get(field)
            args.append(Arg(field, columns[field] if hole is None else Raw(f'absent("{hole}")'), keyword=True))
        rows = next(column.rows for field, column in columns.items() if field in kinds)
        fields = {field: Column(f"{variable}.{field}", columns[field].kind, rows) for field in kinds if field not in (holes or {})}
        takes = {field: kind for field, kind in kinds.items() if field not in (holes or {})}
        self.add("record", Call(cls, args, takes, is_record=True), variable, fields.values())
        if self.maybe(3):
            self.program.wrapped.add(variable)
        return Whole(variable, fields, rows)
