"""What dropping biases, told: lengths and pass rates of what was dropped or taken out of groups against those of what was trained.

trained 96 groups: 24.0 tokens a trajectory, 41% right
dropped 12 groups, 11% of all that were drawn:
  stale 8: 31.5 tokens a trajectory, 20 of 32 trajectories unfinished
  keep_mixed 4: 23.0 tokens a trajectory, 100% right
32 trajectories were taken out of their groups, 8% of these and those that were trained:
  keep_ended 32: 64.0 tokens a trajectory, 3% right
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .controller.tally import Tally
from .controller.totals import Totals

__all__ = ["bias_line", "bias_text"]


def bias_line(totals: Totals) -> dict[str, Any]:
    """The sums, for metrics.jsonl."""
    return {"kept": asdict(totals.kept), "dropped": _sums(totals.lost), "taken_out": _sums(totals.taken_out)}


def bias_text(totals: Totals) -> list[str]:
    """For a person; nothing if nothing was dropped or taken out."""
    if not (totals.lost or totals.taken_out):
        return []
    return [f"trained {totals.kept.groups} groups{_said(totals.kept)}", *_dropped(totals), *_taken_out(totals)]


def _dropped(totals: Totals) -> list[str]:
    if not (lost := sum(tally.groups for tally in totals.lost.values())):
        return []
    share = lost / (lost + totals.kept.groups)
    told = [f"  {reason} {tally.groups}{_said(tally)}" for reason, tally in sorted(totals.lost.items())]
    return [f"dropped {lost} groups, {share:.0%} of all that were drawn:", *told]


def _taken_out(totals: Totals) -> list[str]:
    if not (out := sum(tally.landed for tally in totals.taken_out.values())):
        return []
    share = out / (out + totals.kept.landed)
    told = [f"  {by} {tally.landed}{_said(tally)}" for by, tally in sorted(totals.taken_out.items())]
    were = "trajectory was taken out of its group" if out == 1 else "trajectories were taken out of their groups"
    return [f"{out} {were}, {share:.0%} of these and those that were trained:", *told]


def _sums(tallies: dict[str, Tally]) -> dict[str, Any]:
    return {reason: asdict(tally) for reason, tally in sorted(tallies.items())}


def _said(tally: Tally) -> str:
    parts = [] if tally.mean_tokens is None else [f"{tally.mean_tokens:.1f} tokens a trajectory"]
    if tally.unfinished:
        parts.append(f"{tally.unfinished} of {tally.landed + tally.unfinished} trajectories unfinished")
    if tally.pass_rate is not None:
        parts.append(f"{tally.pass_rate:.0%} right")
    return f": {', '.join(parts)}" if parts else ""
