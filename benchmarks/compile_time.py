"""How long tracing and checking take, pass by pass: `python benchmarks/compile_time.py [runs]`.

Prints the first compile of a process and the median of the rest, for each shipped pipeline. Wanted: at most 20 ms for the largest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(runs: int) -> None:
    rows: list[tuple[str, int, float, float, dict[str, float]]] = []
    for name in ("grpo", "ppo", "multiturn"):
        make = getattr(import_module(f"pipelines.{name}"), name)
        first, *rest = [make() for _ in range(runs + 1)]
        passes = {key: median(plan.timings_ms[key] for plan in rest) for key in first.timings_ms}
        rows.append(
            (name, len(first.graph.nodes), sum(first.timings_ms.values()), median(sum(p.timings_ms.values()) for p in rest), passes)
        )
    print(f"{'pipeline':10} {'nodes':>5} {'first ms':>9} {'p50 ms':>7}   p50 of each pass, ms")
    for name, nodes, first_ms, p50, passes in rows:
        print(f"{name:10} {nodes:5} {first_ms:9.1f} {p50:7.2f}   " + "  ".join(f"{key} {ms:.2f}" for key, ms in passes.items()))
    largest = max(rows, key=lambda row: row[1])
    print(f"\nlargest: {largest[0]}, {largest[1]} nodes, p50 {largest[3]:.2f} ms over {runs} compiles")
    print(f"torch imported: {'torch' in sys.modules}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
