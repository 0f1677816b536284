"""Where the draws come from, and what the compiler says about a generated program: from a file, as of a user's."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from hypothesis import strategies as st

from rlflow import CheckFailed, Diagnostic

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


def check(text: str, folder: Path) -> list[Diagnostic]:
    """All that the compiler says about the pipeline `loop` of a file. A name of its own for each: sources are cached."""
    file = folder / f"loop_{next(_numbers)}.py"
    file.write_text(text)
    module = ModuleType(file.stem)
    sys.modules[file.stem] = module
    try:
        exec(compile(text, str(file), "exec"), vars(module))
        return list(module.loop().warnings)
    except CheckFailed as failed:
        return failed.diagnostics
    finally:
        del sys.modules[file.stem]
