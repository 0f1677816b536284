"""How fast the shipped pipelines learn on this machine: held-out reward over steps and seconds, a seed a row.

    python benchmarks/learning.py                           grpo, seeds 0 1 2
    python benchmarks/learning.py ppo --seeds 0 --steps 100

Seconds are of training: from the first dispatch to the evaluation, without the start of the processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BAR = 0.8
FOLDER = Path(__file__).parents[1] / "pipelines"
PIPELINES = sorted(file.stem for file in FOLDER.glob("*.py") if "\n@pipeline\n" in file.read_text())


def held_out(pipeline: str, seed: int, steps: int, root: Path) -> list[dict[str, Any]]:
    """Run it; the held-out lines of its metrics."""
    file = FOLDER / f"{pipeline}.py"
    name = f"{pipeline}-{seed}"
    flags = ["--steps", str(steps), "--seed", str(seed), "--root", str(root), "--name", name]
    subprocess.run([sys.executable, "-m", "rlflow.cli", "run", str(file), *flags], check=True, stdout=subprocess.DEVNULL)
    lines = map(json.loads, (root / name / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "held_out"]


def row(seed: int, lines: list[dict[str, Any]]) -> str:
    first, last = lines[0], lines[-1]
    over = next((line for line in lines if line["reward"] >= BAR), None)
    reached = f"{over['version']:>6} {over['time'] - first['time']:>8.1f}" if over else f"{'never':>6} {'-':>8}"
    best = max(line["reward"] for line in lines)
    return f"{seed:>4} {first['reward']:>8.3f} {reached} {best:>8.3f} {last['reward']:>8.3f} {last['time'] - first['time']:>8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", nargs="?", default="grpo", choices=PIPELINES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    print(f"{options.pipeline}, {options.steps} steps; held-out reward")
    print(f"seed   before  step≥{BAR} seconds     best      end  seconds", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for seed in options.seeds:
            print(row(seed, held_out(options.pipeline, seed, options.steps, Path(root))), flush=True)


if __name__ == "__main__":
    main()
