"""The small catalogue of tests/messages and the loops of tests/unit/compile serve these tests too."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "messages"), str(TESTS / "unit" / "compile")]
