"""Each `rlf*.py` here is a program with one mistake, `bad`, and the same without it, `good`; the `.txt` beside it is the whole message.

The pairs are the docs: `rlflow explain RLF202` prints them. After a change that is meant: `python tests/messages/update.py`, and read the diff.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from update import message_of

from rlflow.compile.codes import CODES

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("rlf*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_message_is_exactly_this(name: str) -> None:
    assert message_of(name) + "\n" == (HERE / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_repaired_program_is_accepted_without_a_warning(name: str) -> None:
    assert importlib.import_module(name).good().warnings == ()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_message_holds_the_code_that_the_file_is_named_after(name: str) -> None:
    assert f"[{name[:6].upper()}]" in (HERE / f"{name}.txt").read_text()


def test_each_code_has_a_program() -> None:
    assert {name[:6].upper() for name in PROGRAMS} == set(CODES)
