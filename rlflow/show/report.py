"""What a check found, for a person and for machines: `rlflow check FILE.py --format text | json | github`.

text     the messages as rustc would print them, a last line that counts them
json     one object; lines and columns from 1, columns in characters, ends exclusive
github   workflow commands, which GitHub shows beside the line
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..language.diagnostic import CALLED, Diagnostic
from ..language.source import Place, characters


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """A second place and what it has to do with the mistake."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One diagnostic with its places as an editor counts them."""

    code: str
    message: str
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    label: str
    notes: tuple[str, ...]
    help: str | None
    related: tuple[Related, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `--format json` prints."""

    ok: bool
    pipeline: str
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    timings_ms: dict[str, float]


def report(pipeline: str, found: Sequence[Diagnostic], suppressed: Sequence[Diagnostic], timings_ms: Mapping[str, float]) -> Report:
    """All that a check said about `pipeline`. It is ok without an error."""
    errors = tuple(finding(d) for d in found if d.severity == "error")
    return Report(
        ok=not errors,
        pipeline=pipeline,
        errors=errors,
        warnings=tuple(finding(d) for d in found if d.severity == "warning"),
        suppressed=tuple(map(finding, suppressed)),
        timings_ms={name: round(ms, 3) for name, ms in timings_ms.items()},
    )


def finding(found: Diagnostic) -> Finding:
    """A diagnostic as data."""
    return Finding(
        code=found.code,
        message=found.message,
        **_span(found.where),
        label=found.label,
        notes=found.notes,
        help=found.help,
        related=tuple(Related(**_span(label.place), message=label.text) for label in found.related),
    )


def _span(place: Place) -> dict[str, Any]:
    column, end_column = characters(place)
    return {"file": place.file, "line": place.line, "column": column + 1, "end_line": place.end_line, "end_column": end_column + 1}


def github(found: Sequence[Diagnostic], folder: str) -> str:
    """One workflow command a diagnostic. Files inside `folder` are named relative to it, as GitHub expects."""
    return "\n".join(_annotation(d, folder) for d in found)


def _annotation(found: Diagnostic, folder: str) -> str:
    where = _inside(found, folder)
    at = _span(where)
    properties = {"file": _relative(where.file, folder), "line": at["line"]}
    if where.line == where.end_line:  # GitHub drops columns of an annotation over several lines
        properties |= {"col": at["column"], "endLine": at["end_line"], "endColumn": at["end_column"]}
    else:
        properties |= {"endLine": at["end_line"]}
    properties["title"] = found.code
    said = [found.message, *(f"note: {note}" for note in found.notes), *([f"help: {found.help}"] if found.help else [])]
    told = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{found.severity} {told}::{_data(chr(10).join(said))}"


def _inside(found: Diagnostic, folder: str) -> Place:
    """GitHub shows what is in the repository: for a mistake in an installed helper, the line that calls it."""
    callers = [label.place for label in found.related if label.text == CALLED]
    return next((place for place in (found.where, *callers) if _relative(place.file, folder) != place.file), found.where)


def _relative(file: str, folder: str) -> str:
    return file.removeprefix(os.path.join(folder, ""))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
