"""`rlflow explain RLF202`: what a code says, why it is bad in RL, a program that fails and the program repaired."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import rlflow

from ..compile.codes import CODES
from ..errors import UsageError
from ..language.trace import nearest

PROGRAMS = Path(inspect.getfile(rlflow)).resolve().parents[1] / "tests" / "messages"


def explain_code(code: str, programs: Path = PROGRAMS) -> str:
    """The page of a code, case ignored. Raises UsageError, with the near miss and the list, when there is no such code."""
    known = CODES.get(code.upper())
    if known is None:
        raise UsageError(f"there is no code {code}{nearest(code.upper(), CODES)}\n  the codes are {', '.join(CODES)}")
    page = [f"{code.upper()}: {known.title}", "", *textwrap.wrap(known.why, 100)]
    files = sorted(programs.glob(f"{code.lower()}_*.py"))
    for file in files:
        page += [
            "",
            f"── {file.stem} " + "─" * max(0, 97 - len(file.stem)),
            "",
            file.read_text().strip(),
            "",
            _said(file),
            "",
        ]
    if not files:
        page += [
            "",
            f"Programs that fail and their repairs are in the repository: tests/messages/{code.lower()}_*.py",
        ]
    return "\n".join(page).rstrip()


def _said(file: Path) -> str:
    return "`bad` is told\n\n" + textwrap.indent(file.with_suffix(".txt").read_text().strip(), "    ", lambda _: True)
