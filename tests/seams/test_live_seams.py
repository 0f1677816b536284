"""Every fault of the controller's kind has a test with its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LIVE = (
    "G10", "G14", "G17", "G19", "D1", "D13", "D18", "V1", "V3", "V8", "V10", "Q1", "Q2", "Q4", "Q5", "Q7", "Q9", "Q11", "Q15", "W6",
    "C1", "C3", "C6",
)  # fmt: skip
TESTS = "\n".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_live_*.py")))


@pytest.mark.parametrize("row", LIVE)
def test_a_fault_has_a_test_on_the_core_or_the_loop(row: str) -> None:
    assert re.search(rf"^def test_{row}_\w+\(", TESTS, re.MULTILINE)
