"""What fixes the schedule of a run, checked once: the letters n, P, L, W and s of the rules, and the bounds on every retry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ...errors import UsageError
from ...language.stale import STALE, Stale
from .waits import WAITS, WaitKind

__all__ = ["Config", "Hop", "Origin"]


@dataclass(frozen=True, slots=True)
class Hop:
    """An operator that the plan places before boarding; hops run in their order, each on every unit of its scope."""

    operator: str
    per: Literal["trajectory", "group"] = "trajectory"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the counters start: all 0 in a fresh run. Batches count like versions, so there is one number for both."""

    timeline: int = 0
    version: int = 0
    uid: int = 0
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """The schedule of a run. Raises ``UsageError`` for a value that no run could work with.

    Example, 100 synchronous batches of 8 groups of 4: ``Config(n=4, groups_per_batch=8, max_lag=0, last=99, engines=("engine",))``.
    """

    n: int
    """Trajectories a group."""
    groups_per_batch: int
    """P."""
    max_lag: int
    """L: no trained span is older than this many versions (under the policy *correct*: if it need not be)."""
    last: int
    """Id of the last batch: a fresh run of 100 batches has 99."""
    engines: tuple[str, ...]
    watermark: int = 0
    """W: most trajectories in flight, in [n, n·(L+1)·P + n·s], and fixed; 0: it begins at the upper end and adapts (watermark.py)."""
    oversample: int = 0
    """s: groups admitted beyond the seats; the excess is dropped when a batch could be formed."""
    policy: Stale = "wait"
    """What becomes of groups that the next batch would push over L."""
    queue: int = 0
    """Batches that may be formed ahead of the one in training; each adds one to the gap of what comes later."""
    prompts: int = 0
    """Uids below this number exist; 0: as ``epochs`` says."""
    epochs: int = 0
    """How often the data is gone through: uids below rows · epochs exist; 0: no end."""
    remainder: Literal["short", "drop"] = "short"
    """What becomes of the last groups, fewer than P: a short last batch, or dropped."""
    pass_rate: tuple[float, float] | None = None
    """Prompts whose pass rate, when they were last judged, is outside [low, high] are not sampled again; None: all are."""
    seed: int = 0
    """Of the order of the data: tells which row a uid is."""
    hops: tuple[Hop, ...] = ()
    least_left: int = 0
    """The fewest trajectories of a group that its filters leave; 0: all n or none."""
    eval_every: int = 0
    """Evaluate versions that this divides, and the last one; 0: never."""
    keep_best: bool = False
    """Save versions that are evaluated, too."""
    save_every: int = 0
    """Save versions that this divides, and the last one; 0: only the last one. Where half of ``max_uncovered_rows`` are kept, the next."""
    max_attempts: int = 3
    """Failed attempts a trajectory, then its group is dropped; so many engines that go down under one, too: it may be what they die of.

    Attempts an evaluation, then the run fails.
    """
    max_sync_attempts: int = 3
    """Failed syncs of one engine in a row, then the run fails."""
    max_save_attempts: int = 3
    """Failed saves in a row that the end of the run waits for, then it fails; before the end a failed save is a warning."""
    max_drops: int = 0
    """Groups dropped without a batch formed in between, then the run fails: nothing would ever be trained; 0: 64·P."""
    max_uncovered_rows: int = 1_000_000
    """Rows kept of trained and dropped groups that no checkpoint covers yet; more and the run fails: saves fail, or are too rare."""
    covered_at_once: int = 32
    """Groups that one transition folds into the sums, of those that a checkpoint covers: a large batch holds no event up for long."""
    engine_restarts: int = 5
    """Restarts of each engine, not counting those before it had served for long; one more death and the run fails."""
    engine_recovery: int = 8
    """Batches that are trained while an engine serves, then its deaths before do not count any more."""
    trainer_restarts: int = 5
    """Rollbacks without a new checkpoint in between; one more death of a trainer and the run fails."""
    restart_delay: float = 1.0
    """Seconds before the first restart of an engine or of the trainers; doubles with each."""
    timeouts: Mapping[WaitKind, float] = field(default_factory=dict)
    """Seconds for waits of ``waits.WAITS`` that are not to have their default."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_watermark()
        self._check_names()

    @property
    def in_flight_target(self) -> int:
        """W at the start, in trajectories."""
        return self.watermark or self.highest_watermark

    @property
    def highest_watermark(self) -> int:
        """All trajectories that admission can let in at once: n · ((L + 1) · P + s)."""
        return self.n * ((self.max_lag + 1) * self.groups_per_batch + self.oversample)

    @property
    def watermark_step(self) -> int:
        """W moves by whole groups, an eighth of a batch at a time."""
        return self.n * max(1, self.groups_per_batch // 8)

    @property
    def drop_bound(self) -> int:
        return self.max_drops or 64 * self.groups_per_batch

    @cached_property
    def trajectory_hops(self) -> tuple[str, ...]:
        return tuple(hop.operator for hop in self.hops if hop.per == "trajectory")

    @cached_property
    def group_hops(self) -> tuple[str, ...]:
        return tuple(hop.operator for hop in self.hops if hop.per == "group")

    def seconds(self, kind: WaitKind) -> float:
        return self.timeouts.get(kind, WAITS[kind].seconds)

    def _check_sizes(self) -> None:
        positive = ("n", "groups_per_batch", "max_attempts", "max_sync_attempts", "max_save_attempts",
                    "max_uncovered_rows", "covered_at_once", "engine_recovery")  # fmt: skip
        others = ("max_lag", "last", "watermark", "oversample", "queue", "prompts", "epochs", "eval_every", "save_every", "max_drops",
                  "least_left", "engine_restarts", "trainer_restarts", "restart_delay")  # fmt: skip
        for name in (*positive, *others):
            low = 1 if name in positive else 0
            if getattr(self, name) < low:
                raise UsageError(f"{name}={getattr(self, name)} makes no run: it must be at least {low}")
        if self.pass_rate is not None and not 0.0 <= self.pass_rate[0] <= self.pass_rate[1] <= 1.0:
            raise UsageError(f"pass_rate={self.pass_rate}: give the lowest and the highest rate that is sampled, 0 ≤ low ≤ high ≤ 1")
        if self.policy not in STALE:
            raise UsageError(f"policy={self.policy!r} is none of {', '.join(STALE)}")

    def _check_watermark(self) -> None:
        if self.watermark and not self.n <= self.watermark <= self.highest_watermark:
            raise UsageError(
                f"watermark={self.watermark} trajectories is outside [{self.n}, {self.highest_watermark}] "
                f"= [n, n·((max_lag + 1)·groups_per_batch + oversample)]: choose one inside, or 0 for {self.highest_watermark}"
            )

    def _check_names(self) -> None:
        if not self.engines or len(set(self.engines)) != len(self.engines):
            raise UsageError(f"engines={self.engines!r}: at least one engine, each with a name of its own")
        if unknown := set(self.timeouts) - set(WAITS):
            raise UsageError(f"timeouts for {sorted(unknown)}: no such wait; there are {', '.join(WAITS)}")
        scopes = [hop.per for hop in self.hops]
        if scopes != sorted(scopes, reverse=True):
            raise UsageError(f"hops {[hop.operator for hop in self.hops]}: those per trajectory run before those per group; reorder them")
        if len({hop.operator for hop in self.hops}) != len(self.hops):
            raise UsageError(f"hops {[hop.operator for hop in self.hops]}: an operator is named twice")
