"""What is noted of the files that operators stand in."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from small_loop import small

from rlflow.run.digests import digests


def test_a_file_that_is_not_there_has_no_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled without its source, or from a cell: Python still names one."""
    graph = small().graph
    assert {"operators.batching:dispatch", "small_loop:judge"} <= digests(graph).keys()
    monkeypatch.setattr(inspect, "getsourcefile", lambda _: str(tmp_path / "gone.py"))
    assert digests(graph) == {}
