"""What dropping biases, told: lengths and pass rates of what was dropped against those of what was trained.

trained 96 groups: 24.0 tokens a trajectory, 41% right
dropped 12 groups, 11% of all that were drawn:
  stale 8: 31.5 tokens a trajectory, 20 of 32 trajectories unfinished
  keep_mixed 4: 23.0 tokens a trajectory, 100% right
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .controller.tally import Tally
from .controller.totals import Totals

__all__ = ["bias_line", "bias_text"]


def bias_line(totals: Totals) -> dict[str, Any]:
    """The sums, for metrics.jsonl."""
    return {"kept": asdict(totals.kept), "dropped": {reason: asdict(tally) for reason, tally in sorted(totals.lost.items())}}


def bias_text(totals: Totals) -> list[str]:
    """For a person; nothing if nothing was dropped."""
    lost = sum(tally.groups for tally in totals.lost.values())
    if not lost:
        return []
    share = lost / (lost + totals.kept.groups)
    return [
        f"trained {totals.kept.groups} groups{_said(totals.kept)}",
        f"dropped {lost} groups, {share:.0%} of all that were drawn:",
        *(f"  {reason} {tally.groups}{_said(tally)}" for reason, tally in sorted(totals.lost.items())),
    ]


def _said(tally: Tally) -> str:
    parts = [] if tally.mean_tokens is None else [f"{tally.mean_tokens:.1f} tokens a trajectory"]
    if tally.unfinished:
        parts.append(f"{tally.unfinished} of {tally.landed + tally.unfinished} trajectories unfinished")
    if tally.pass_rate is not None:
        parts.append(f"{tally.pass_rate:.0%} right")
    return f": {', '.join(parts)}" if parts else ""
