"""What a run tells: metrics.jsonl, one line a step, and the same to a person through a View.

measured, took             between two steps: numbers and seconds of what happens beside the batch
trained                    one step is done: a line {"kind": "step", ...}
stalled                    nothing has happened for long: a line {"kind": "stalled", ...}
ended                      what dropping groups biased
evaluated                  a line {"kind": "held_out", ...}
timeline                   a line {"kind": "timeline", ...}: at the start, a rollback, a resume
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..measure import added, settled
from .batchscope import BatchResult
from .bias import bias_line, bias_text
from .blocks import Blocks
from .controller.state import State
from .controller.totals import Totals
from .graph import GraphView
from .ready import Landed
from .rundir import RunDir
from .transport import Peer

KEEPS_NO_ROW = "keeps no row of it"  # what a filter says of a group that it drops: its daily work, and no news
ASKED_FOR = frozenset({"pass rate", "oversampled"})  # reasons that a flag gives: counted at the end, no news one by one


class View(Protocol):
    """Where a person sees it."""

    def step(self, line: Mapping[str, Any]) -> None: ...
    def held_out(self, line: Mapping[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


class Report:
    def __init__(self, view: GraphView, run_dir: RunDir, screen: View, peers: Mapping[str, Peer], blocks: Blocks) -> None:
        self.view, self.run_dir, self.screen, self.peers, self.blocks = view, run_dir, screen, peers, blocks
        self.started = self._last_step = time.monotonic()
        self.last_reward: dict[str, float] = {}
        self._evaluated: dict[str, int] = {}
        self._metrics: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._socket_bytes = 0

    def measured(self, numbers: Mapping[str, float]) -> None:
        self._metrics |= numbers

    def took(self, what: str, seconds: float) -> None:
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def dropped(self, uid: int, reason: str, detail: str) -> None:
        self.run_dir.metric({"kind": "dropped", "uid": uid, "reason": reason, "detail": detail})
        if reason not in ASKED_FOR and not detail.endswith(KEEPS_NO_ROW):
            self.screen.note(f"prompt {uid} dropped ({reason}): {detail.splitlines()[0] if detail else ''}")

    def stalled(self, told: str) -> None:
        self.run_dir.metric({"kind": "stalled", "told": told})
        self.screen.note(told)

    def trained(self, batch: int, state: State, landed: Sequence[Landed], result: BatchResult, seconds: float) -> None:
        now, crossed = time.monotonic(), sum(peer.bytes_in + peer.bytes_out for peer in self.peers.values())
        tokens = sum(n for trajectory in landed for n in trajectory.lengths)
        metrics = settled(self._metrics | added(_of_trajectories([t.metrics for t in landed], self.view.means), result.metrics))
        reward = self.view.reward_metric
        line = {
            "kind": "step",
            "step": batch + 1,
            "version": batch + 1,
            "timeline": state.timeline,
            "time": round(now - self.started, 3),
            "reward": metrics.get(reward) if reward else None,
            "rows": sum(len(t.lengths) for t in landed),
            "tokens": tokens,
            "seconds": round(now - self._last_step, 4),
            "seconds_by_hop": {k: round(v, 4) for k, v in (self._seconds | {"batch": seconds} | result.seconds).items()},
            "staleness": {str(gap): n for gap, n in sorted(state.training.staleness.items())} if state.training else {},
            "queue": {"in_flight": state.in_flight, "ready_groups": state.ready, "batches": state.queue_depth},
            "watermark": {"target": state.watermark.value, "last_change": state.watermark.reason},
            "dropped": dict(state.totals.dropped),
            "bias": bias_line(state.totals),
            "masked_tokens": state.masked_tokens,
            "controller_socket_bytes": crossed - self._socket_bytes,
            "controller_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "pool_bytes": self.blocks.outstanding,
            "pool_peak_bytes": self.blocks.peak,
            "metrics": metrics,
        }
        self._last_step, self._socket_bytes, self._metrics, self._seconds = now, crossed, {}, {}
        self.blocks.reset_peak()
        self.run_dir.metric(line)
        self.screen.step(line)

    def timeline(self, timeline: int, version: int) -> None:
        """Steps beyond this version that stand above are of weights that were lost."""
        at = round(time.monotonic() - self.started, 3)
        self.run_dir.metric({"kind": "timeline", "timeline": timeline, "version": version, "time": at})
        if timeline:
            self.screen.note(f"going on from version {version} (timeline {timeline})")

    def ended(self, totals: Totals) -> None:
        """What was dropped on the way, against what was trained."""
        for line in bias_text(totals):
            self.screen.note(line)

    def evaluated(self, name: str, version: int, numbers: Mapping[str, float], seconds: float) -> None:
        at = round(time.monotonic() - self.started, 3)
        line = {"kind": "held_out", "name": name, "version": version, "time": at, "seconds": round(seconds, 3)} | settled(numbers)
        if version >= self._evaluated.get(name, 0):  # on another engine an older version may take longer
            self._evaluated[name], self.last_reward[name] = version, numbers.get("reward", float("nan"))
        self.run_dir.metric(line)
        self.screen.held_out(line)


def _of_trajectories(measured: Sequence[Mapping[str, float]], means: frozenset[str]) -> dict[str, float]:
    """What was measured on all trajectories together: means over them; every other number is a count, and adds up."""
    names = sorted({name for numbers in measured for name in numbers})
    sums = {name: sum(numbers.get(name, 0.0) for numbers in measured) for name in names}
    return {name: total / len(measured) if name in means else total for name, total in sums.items()}
