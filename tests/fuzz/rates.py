"""Both rates of the static check over random loops: `python tests/fuzz/rates.py [200]`.

    valid     loops that are right: how many check without an error and without a warning
    mutated   the same loops with one mistake: how many are refused, at the mutated place, with one error of an expected code

Seeds 0 to n - 1: the figures of one commit are the same everywhere. A loop that is not as it should be is shown.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from loop_faults import break_loop  # noqa: E402
from loop_judge import Seeded, check, problem  # noqa: E402
from loop_maker import make_loop  # noqa: E402
from loop_model import render  # noqa: E402


def valid(count: int, folder: Path) -> None:
    """How many right loops are clean."""
    clean = 0
    for seed in range(count):
        said = check(render(make_loop(Seeded(seed))).text, folder)
        clean += not said
        if said:
            print(f"seed {seed} is not clean:\n{said[0]}\n")
    print(f"valid: {clean}/{count} clean")


def mutated(count: int, folder: Path) -> None:
    """How many broken loops are refused as they should be, by kind."""
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(count):
        choose = Seeded(seed)
        program = make_loop(choose)
        kind, fault = break_loop(program, choose)
        rendered = render(program)
        said = check(rendered.text, folder)
        wrong = problem(fault, rendered, said)
        kinds[kind].update(["total", *_marks(wrong)])
        if wrong:
            print(f"seed {seed}, {kind}: {wrong}\n" + "\n".join(map(str, said)) + "\n")
    print(f"\n{'kind':24}{'total':>6}{'refused':>9}{'expected code':>15}{'one error':>11}{'at the place':>14}")
    total = sum(kinds.values(), Counter[str]())
    for kind, found in [*sorted(kinds.items()), ("all", total)]:
        print(f"{kind:24}{found['total']:6}{found['refused']:9}{found['code']:15}{found['one']:11}{found['place']:14}")


def _marks(wrong: str | None) -> list[str]:
    """How far an answer was right; the checks of `problem`, in its order."""
    reached = ["refused", "code", "one", "place"]
    if wrong is None:
        return reached
    if wrong == "missed":
        return []
    if wrong.startswith("told as"):
        return reached[:1]
    return reached[:2] if wrong.endswith("errors") else reached[:3]


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as scratch:
        valid(asked, Path(scratch))
        mutated(asked, Path(scratch))
