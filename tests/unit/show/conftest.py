"""The small catalogue of tests/messages and its loops serve these tests too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "messages"), str(Path(__file__).parents[1] / "compile")]
