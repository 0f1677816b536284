"""The schedules are worth something: mistakes in the rules are found. The rest of the list takes a while: ``mutations.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_place_in_the_core(mutation: Mutation) -> None:
    text = mutation.path.read_text()
    assert mutation.apply(text) != text


@pytest.mark.parametrize("name", ["a batch takes what a filter took out", "an attempt is used again"])
def test_a_mutation_is_found_within_100_schedules(name: str) -> None:
    command = [sys.executable, str(Path(__file__).parent / "mutations.py"), "100", name]
    said = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True).stdout
    assert "1 of 1 found within 100 schedules each" in said
