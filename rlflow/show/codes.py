"""`rlflow explain RLF202`: the page of a code - why it is bad in RL, a program that fails, its message, the program repaired."""

from __future__ import annotations

import inspect
from pathlib import Path

import rlflow

from ..compile.codes import CODES, SUPPRESSIBLE
from ..errors import RlflowError, UsageError
from ..language.diagnostic import nearest

PACKAGE = Path(inspect.getfile(rlflow)).resolve().parent
FOLDERS = (PACKAGE / "messages", PACKAGE.parent / "tests" / "messages")  # in a wheel; in the repository


def explain_code(code: str, folders: tuple[Path, ...] = FOLDERS) -> str:
    """The page of a code, case ignored. Raises UsageError, with the near miss and the list, when there is no such code."""
    name = code.upper()
    if name not in CODES:
        raise UsageError(f"there is no code {code}{nearest(name, CODES)}\n  the codes are {', '.join(CODES)}")
    page = next((file for folder in folders if (file := folder / f"{name}.md").is_file()), None)
    if page is None:
        raise RlflowError(f"{name}: {CODES[name]}; its page is missing, looked for in {' and '.join(map(str, folders))}")
    return f"{page.read_text(encoding='utf-8').rstrip()}\n\n{_suppression(name)}"


def _suppression(code: str) -> str:
    if code not in SUPPRESSIBLE:
        return "It cannot be suppressed."
    return f"Where it is meant: `# rlflow: ignore[{code}] why`, on a line of the call, or alone on the line above it."
