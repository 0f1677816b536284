"""Held-out reward against wall clock of real runs: is staleness worth it? Part of async_overlap.py, which prints it with --real.

    cells: max_lag 0 ... 4, with and without truncated importance, a seed each ──▶ one line of a file a cell ──▶ table

A cell that is in the file is not run again, so that a measurement can be interrupted, and taken up on the same machine.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BAR = 0.8
MOMENTS = (10, 20, 30, 40)  # seconds of training
FLAGS = ("--prompts", "16", "--group-size", "8", "--eval-every", "10", "--save-every", "0")


@dataclass(frozen=True)
class Cell:
    max_lag: int
    correction: str
    """none | truncated."""
    seed: int


@dataclass(frozen=True)
class Curve:
    """What a run of one cell gave. points: (seconds since the first evaluation, held-out reward, version)."""

    cell: Cell
    steps: int
    points: tuple[tuple[float, float, int], ...]
    gap: float
    """Mean age of the trained tokens, in versions."""

    @property
    def seconds_a_step(self) -> float:
        return self.points[-1][0] / self.steps

    def reward_at(self, moment: float) -> float:
        """Of the last evaluation before."""
        return [reward for seconds, reward, _ in self.points if seconds <= moment][-1]

    @property
    def seconds_to_bar(self) -> float | None:
        return next((seconds for seconds, reward, _ in self.points if reward >= BAR), None)


def cells(seeds: Sequence[int]) -> list[Cell]:
    """Seed after seed, so that whatever there was time for compares like with like. Without lag there is nothing to correct."""
    kinds = [(0, "none"), *itertools.product(range(1, 5), ("none", "truncated"))]
    return [Cell(lag, correction, seed) for seed in seeds for lag, correction in kinds]


def measure(wanted: Sequence[Cell], steps: int, file: Path, until: float) -> list[Curve]:
    """Of the file, and run until all are there or the clock says `until` (seconds of the epoch)."""
    found = {curve.cell: curve for curve in _read(file) if curve.steps == steps}
    for i, cell in enumerate(wanted, 1):
        if cell in found or time.time() > until:
            continue
        began = time.monotonic()
        found[cell] = curve = _run(cell, steps)
        with file.open("a") as results:
            results.write(json.dumps(asdict(curve)) + "\n")
        said = f"{time.monotonic() - began:.0f} s, held-out {curve.points[-1][1]:.3f}, mean gap {curve.gap:.2f}"
        print(f"  {i}/{len(wanted)} max_lag {cell.max_lag} {cell.correction} seed {cell.seed}: {said}", file=sys.stderr, flush=True)
    return [found[cell] for cell in wanted if cell in found]


def _read(file: Path) -> list[Curve]:
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [Curve(Cell(**of["cell"]), of["steps"], tuple(map(tuple, of["points"])), of["gap"]) for of in lines]


def _run(cell: Cell, steps: int) -> Curve:
    with tempfile.TemporaryDirectory(prefix="rlflow-lag-") as root:
        flags = [*FLAGS, "--steps", str(steps), "--seed", str(cell.seed), "--max-lag", str(cell.max_lag)]
        if cell.max_lag and cell.correction == "none":
            flags += ["--swap", "truncated_importance=uncorrected:uncorrected"]
        command = [sys.executable, "-m", "rlflow.cli", "run", str(ROOT / "pipelines" / "grpo.py"), "--root", root, "--name", "cell", *flags]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parent)
        if done.returncode:
            raise RuntimeError(f"{cell} ended with {done.returncode}: {done.stderr[-2000:]}")
        lines = [json.loads(line) for line in (Path(root) / "cell" / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if line["kind"] == "held_out"]
    points = tuple((round(line["time"] - held_out[0]["time"], 2), line["reward"], line["version"]) for line in held_out)
    gaps = [(int(gap), tokens) for line in lines if line["kind"] == "step" for gap, tokens in line["staleness"].items()]
    return Curve(cell, steps, points, sum(gap * tokens for gap, tokens in gaps) / sum(tokens for _, tokens in gaps))


def table(curves: Sequence[Curve]) -> str:
    moments = " ".join(f"{f'at {moment} s':>18}" for moment in MOMENTS)
    head = f"{'max_lag':>7} {'correction':>10} {'seeds':>5} {'s/step':>6} {'mean gap':>8} {moments} "
    lines = [head + f"{'at the end':>18} {f'seconds to {BAR}':>18}"]
    for (lag, correction), group in itertools.groupby(sorted(curves, key=_kind), key=_kind):
        lines.append(_row(lag, correction, list(group)))
    return "\n".join(lines)


def _kind(curve: Curve) -> tuple[int, str]:
    return curve.cell.max_lag, curve.cell.correction


def _row(lag: int, correction: str, curves: Sequence[Curve]) -> str:
    def spread(of: Callable[[Curve], float]) -> str:
        values = [of(curve) for curve in curves]
        return f"{f'{statistics.fmean(values):.3f} ({min(values):.2f}..{max(values):.2f})':>18}"

    reached = [seconds for curve in curves if (seconds := curve.seconds_to_bar) is not None]
    to_bar = f"{statistics.fmean(reached):.1f} ({len(reached)} of {len(curves)})" if reached else "never"
    shown = " ".join(spread(lambda curve, moment=moment: curve.reward_at(moment)) for moment in MOMENTS)  # type: ignore[misc]
    step, gap = (statistics.fmean(values) for values in zip(*((c.seconds_a_step, c.gap) for c in curves), strict=True))
    end = spread(lambda curve: curve.points[-1][1])
    return f"{lag:>7} {correction:>10} {len(curves):>5} {step:>6.2f} {gap:>8.2f} {shown} {end} {to_bar:>18}"
