"""Compiling takes as many steps as the graph is long: counted in executed lines, so that a busy machine changes nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve()


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_compile", HERE.parents[3] / "benchmarks" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_compile"] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()


def _steps(shape: Any, size: int, folder: Path) -> int:
    """Lines of the compiler that a compile executes. (The second one: the first fills caches.)"""
    module = BENCHMARK.load(BENCHMARK.HEAD + "\n".join(shape(size)) + "\n", f"{shape.__name__}_{size}", folder)
    module.loop()
    lines = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        module.loop()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("shape", BENCHMARK.SHAPES, ids=lambda shape: shape.__name__)
def test_four_times_the_calls_take_about_four_times_the_steps(shape: Any, tmp_path: Path) -> None:
    """n log n would be 5.3 times; a pass that takes n² and a tenth of the time at first, 5.2; all of it, 16."""
    few, many = _steps(shape, 80, tmp_path), _steps(shape, 320, tmp_path)
    assert 3 < many / few < 4.8
