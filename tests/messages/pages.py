"""The pages of this folder as data: `RLF202.md` → its cases → what is said of each bad program.

# RLF202: title                    the title of rlflow/compile/codes.py
why this is bad in RL
## read after move                 a case; its programs are rlf202_read_after_move.py
what went wrong, in a sentence
```python  ```text  ```python      the bad program, the exact message, the program repaired
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlflow import CheckFailed, Plan
from rlflow.language.diagnostic import Diagnostic

HERE = Path(__file__).parent
PAGES = sorted(HERE.glob("RLF*.md"))
CASE = re.compile(
    r"^## (?P<title>[^\n]+)\n\n(?P<wrong>(?:(?!```).)+?)\n\n"
    r"```python\n(?P<bad>.*?)^```\n\n```text\n(?P<message>.*?)^```\n\n```python\n(?P<good>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Case(NamedTuple):
    """One bad program of a page, its message and its repair."""

    code: str
    title: str
    bad: str
    message: str
    good: str

    @property
    def name(self) -> str:
        """The name of the file that its messages are about."""
        return f"{self.code.lower()}_{re.sub('[^a-z0-9]+', '_', self.title.lower())}"


def cases_of(page: Path) -> Iterator[Case]:
    """The cases of a page, in order."""
    for found in CASE.finditer(page.read_text()):
        yield Case(page.stem, found["title"], found["bad"], found["message"], found["good"])


def check(name: str, program: str, folder: Path) -> Plan | None:
    """The plan of the `loop` of a program, None where it has none (declarations alone). Raises CheckFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(program)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.loop() if hasattr(module, "loop") else None
    finally:
        del sys.modules[name]


def found_in(name: str, program: str, folder: Path) -> tuple[str, list[Diagnostic]]:
    """What is said of a program, as text and as data: the refusal, or the warnings of its plan."""
    try:
        plan = check(name, program, folder)
    except CheckFailed as refused:
        return str(refused), refused.diagnostics
    warnings = [] if plan is None else list(plan.warnings)
    return "\n\n".join(map(str, warnings)), warnings
