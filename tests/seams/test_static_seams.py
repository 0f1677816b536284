"""Every fault of the field that a static check can refuse has a test here, named after its id.

test_static_groups.py     L loss scale, G grouping and filters
test_static_fields.py     S slices, masks, alignment
test_static_batches.py    D union, divisibility, padding
test_static_versions.py   V versions and log-probs
test_static_protocol.py   Q W C M protocols, state, lifetime

Each says in a sentence what happened, and shows that the program is refused in words that a person who met it would recognise, or that it
cannot be written.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
IDS = [
    *("L3", "G1", "G10", "G13", "G15", "G22"),
    *("S1", "S5", "S8", "S17", "S19"),
    *("D1", "D2", "D3", "D5", "D7", "D12", "D20", "D22"),
    *("V3", "V12", "V13", "V14", "V18"),
    *("Q13", "Q17", "Q19", "M8", "W5", "C8"),
]  # fmt: skip


def _tests() -> list[ast.FunctionDef]:
    files = sorted(HERE.glob("test_static_*.py"))
    return [node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("seam", IDS)
def test_a_seam_has_a_test_that_tells_what_happened(seam: str) -> None:
    found = [test for test in _tests() if test.name.startswith(f"test_{seam}_")]
    assert found
    assert all(ast.get_docstring(test) for test in found)
