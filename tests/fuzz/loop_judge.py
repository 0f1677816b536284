"""Where the draws come from, and what the compiler says about a generated program: from a file, as of a user's."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from fault import Fault
from hypothesis import strategies as st
from loop_model import Line, Rendered

from rlflow import CheckFailed, Diagnostic
from rlflow.language.source import Place, text

X = TypeVar("X")
_numbers = count()


class Seeded:
    """`Choose` from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, options: Sequence[X]) -> X:
        return self.random.choice(options)

    def order(self, options: Sequence[X]) -> list[X]:
        return self.random.sample(list(options), len(options))


class Drawn:
    """`Choose` from hypothesis, which shrinks towards the first option and the given order."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def one(self, options: Sequence[X]) -> X:
        return self.data.draw(st.sampled_from(options))

    def order(self, options: Sequence[X]) -> list[X]:
        return self.data.draw(st.permutations(options))


def check(program: str, folder: Path) -> list[Diagnostic]:
    """All that the compiler says about the pipeline `loop` of a file. A name of its own for each: sources are cached."""
    file = folder / f"loop_{next(_numbers)}.py"
    file.write_text(program)
    module = ModuleType(file.stem)
    sys.modules[file.stem] = module
    try:
        exec(compile(program, str(file), "exec"), vars(module))
        return list(module.loop().warnings)
    except CheckFailed as failed:
        return failed.diagnostics
    finally:
        del sys.modules[file.stem]


def problem(fault: Fault, rendered: Rendered, said: list[Diagnostic]) -> str | None:
    """What is wrong with the answer to a broken loop: None when it is one error, with an expected code, at the mutated place."""
    errors = [found for found in said if found.severity == "error"]
    judged = errors if fault.severity == "error" else [found for found in said if found.code in fault.codes]
    if not judged:
        return "missed"
    if not any(found.code in fault.codes for found in judged):
        return f"told as {judged[0].code}"
    if len(judged) > 1 or (fault.severity != "error" and errors):
        return f"{len(judged)} errors"
    return _misplaced(fault, rendered, judged[0])


def _misplaced(fault: Fault, rendered: Rendered, found: Diagnostic) -> str | None:
    def at(line: Line, place: Place) -> bool:
        return "loop_" in place.file and place.line in rendered.places[id(line)]

    if not any(at(line, found.where) for line in fault.primary or (fault.line,)):
        return f"at line {found.where.line}"
    if fault.text is not None and text(found.where) != fault.text:
        return f"at `{text(found.where)}`"
    told = [found.where, *(label.place for label in found.related)]
    if not all(any(at(line, place) for place in told) for line in fault.also):
        return "the second place is not told"
    return None
