"""`python tests/messages/update.py`: write the messages of all programs down anew. Read the diff before you keep it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from rlflow import CheckFailed

HERE = Path(__file__).parent


def message_of(name: str) -> str:
    """What `bad` of a program is refused with; or, where it is accepted, its warnings."""
    program = importlib.import_module(name)
    try:
        plan = program.bad()
    except CheckFailed as refused:
        return str(refused)
    return "\n\n".join([*map(str, plan.warnings), "accepted"])


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    for path in sorted(HERE.glob("rlf*.py")):
        path.with_suffix(".txt").write_text(message_of(path.stem) + "\n")
