"""The first screen of a package is its map: it names every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "rlflow"


PACKAGES = ("compile", "data", "data/pool", "engines/train", "language", "run", "run/controller", "run/ledger", "show", "testing")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_files(package: str) -> None:
    said = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    names = set("".join(c if c.isalnum() or c == "_" else " " for c in said).split())
    assert {file.stem for file in (ROOT / package).glob("*.py")} - {"__init__"} <= names
