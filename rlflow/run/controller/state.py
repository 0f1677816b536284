"""What the controller knows: counters, ids, versions and states. No clock, socket, process, tensor or random source.

    group       pending → running → landed → ready → consumed → trained | dropped → covered
    trajectory  queued → running(engine) → landed | failed → queued (attempt + 1) | dropped
    batch       queued → training → trained → covered (a durable checkpoint of version ≥ batch + 1 exists)
    engine      down → stale → syncing → serving | stale;  serving → stale (a newer version is published);  any → down

A pending group is a uid that is not drawn, a covered one is forgotten: the state does not grow with the length of a run.
``State`` is owned and changed by ``decide`` alone; ``copy.deepcopy`` of it is another state.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from .buffer import ReadyBuffer
from .events import AnyAction, Arm, Disarm, Recycle
from .ids import BatchId, EvaluationId, GroupId, Span, SyncId, TrajectoryId
from .journal import BatchRow, Change, Counters, EvaluationRow, Finished, GroupRow, TimelineRow, TrajectoryRow
from .passrates import PassRates
from .routing import Routing
from .schedule import Config, Hop, Origin
from .tally import Tally
from .waits import WAITS, Armed, Subject, WaitKind, wait_name
from .watermark import Watermark

__all__ = ["Batch", "Config", "Engine", "Group", "Hop", "Origin", "State", "Trajectory"]


class Trajectory(msgspec.Struct, gc=False):
    uid: int
    traj_uid: int
    attempt: int
    tries: int = 0
    """Attempts sent so far: bounded, while ``attempt`` goes on counting across timelines."""
    state: Literal["queued", "running", "landed"] = "queued"
    engine: str = ""
    version_tag: int = -1
    """Published version when this attempt was registered."""
    spans: tuple[Span, ...] = ()
    rows: int = 0
    hops_done: int = 0
    turn: int = 0
    """That was asked for last; the Dispatch was turn 0."""
    judged: tuple[int, int] = (0, 0)
    """Tries and passes."""
    is_touched: bool = False
    """By the transition under way: it gets a row in the journal."""

    @property
    def id(self) -> TrajectoryId:
        return TrajectoryId(self.uid, self.traj_uid, self.attempt)


class Group(msgspec.Struct, gc=False):
    uid: int
    tag: int
    """Oldest version tag of its trajectories; its deadline is ``tag + max_lag``."""
    trajectories: list[Trajectory]
    state: Literal["running", "landed", "ready", "consumed", "trained", "dropped"] = "running"
    landed: int = 0
    scored: int = 0
    """Landed trajectories for which every operator per trajectory has returned."""
    hops_done: int = 0
    engine: str = ""
    """Where a trajectory of it was sent last: the prefix of the prompt is there."""
    batch: int = -1
    """Where it was consumed."""
    version: int = -1
    """Published when it was trained or dropped."""
    reason: str = ""
    detail: str = ""
    rows: int = 0
    """Stored leaf rows, once it is trained or dropped."""
    judged: tuple[int, int] = (0, 0)
    """Tries and passes, where an operator judges the whole group."""
    tally: Tally | None = None
    """What it counts for, once it is trained or dropped."""
    is_touched: bool = False


@dataclass(slots=True)
class Engine:
    name: str
    index: int
    state: Literal["down", "stale", "syncing", "serving"] = "down"
    start: int = 0
    """Incarnation: 0 before the first Start."""
    is_starting: bool = False
    capacity: int = 0
    held: int | None = None
    """Version that the last probe found; None: unknown."""
    running: dict[tuple[int, int], Trajectory] = field(default_factory=dict)
    sync: SyncId | None = None
    sync_attempts: int = 0
    sync_failures: int = 0
    evaluation: EvaluationId | None = None

    @property
    def offered_room(self) -> int:
        """Trajectories that may be sent now: only an engine that serves the published version takes first requests."""
        room = self.capacity - len(self.running)
        return room if room > 0 and self.state == "serving" else 0


@dataclass(frozen=True, slots=True)
class Batch:
    id: BatchId
    groups: tuple[int, ...]
    trajectories: tuple[TrajectoryId, ...]
    """Ordered (uid, traj_uid)."""
    rows: int
    staleness: dict[int, int]
    """Gap ``b - span.version`` -> sampled tokens in this batch; under the policy *mask* those above ``max_lag`` are not trained on."""


@dataclass(slots=True)
class Totals:
    """Counts since the start, for metrics."""

    dropped: Counter[str] = field(default_factory=Counter)
    """Groups by reason."""
    lost: dict[str, Tally] = field(default_factory=dict)
    """What was dropped, by reason, and what was trained: where they differ, dropping biases."""
    kept: Tally = field(default_factory=Tally)
    ignored: Counter[str] = field(default_factory=Counter)
    """Events of an old timeline, attempt or start, by type: they changed nothing."""
    failed_attempts: int = 0
    failed_syncs: int = 0
    failed_saves: int = 0
    engine_deaths: int = 0
    rollbacks: int = 0
    trained_groups: int = 0
    trained_rows: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    """Gap -> sampled tokens, over all batches formed."""


class State:
    """The whole state of a run. ``origin`` is where the counters of a fresh one start."""

    def __init__(self, config: Config, origin: Origin | None = None) -> None:
        origin = origin or Origin()
        self.config = config
        self.origin = origin
        self.highest_attempt = origin.attempt - 1
        """No attempt of any timeline was higher."""
        self.rows = 0
        """Prompts of the data set; 0: not told yet."""
        self.pass_rates = PassRates(config.pass_rate)
        self.engines = {name: Engine(name, index) for index, name in enumerate(config.engines)}
        self.fleet = tuple(self.engines.values())
        self.workers_up = False
        self.workers_start = 0
        """Incarnation of all workers that are not engines: 0 before the first StartWorkers."""
        self.trainer_deaths = 0
        """Rollbacks since the newest checkpoint was made."""
        self.evaluation_attempts = 0

        self.checkpoint: int | None = None
        """Newest version with a durable checkpoint on this timeline; None: the run is where it began."""
        self.next_uid = origin.uid
        """No uid from here on was drawn on this timeline."""
        self.pending: list[int] = []
        """Heap of the uids below ``next_uid`` that are neither finished nor live: drawn before on a timeline that died."""
        self.source_end = -1
        """Uids below this number exist, as ``SourceEnd`` said; -1: it did not."""
        self.begin(origin.timeline, origin.version)

        self.seconds: dict[WaitKind, float] = {kind: config.seconds(kind) for kind in WAITS}
        self.armed: dict[str, Armed] = {}
        """Timers that run, by name: who waits for what."""
        self.started = False
        self.is_resumed = False
        self.stops = 0
        self.failure = ""
        """Why the run must end with a failure, as soon as this transition is over."""
        self.finished = False
        self.totals = Totals()
        self.actions: list[AnyAction] = []
        """Of the transition under way."""
        self.journal: list[Change] = []
        """Of the transition under way: what it did to what outlives a crash."""
        self.touched: list[Group | Trajectory] = []
        self.covered: list[int] = []
        """Uids that a checkpoint covers since this transition."""
        self.abandoned: list[int] = []
        """Uids whose rows are nobody's: pending again."""

    def begin(self, timeline: int, version: int) -> None:
        """All that a timeline starts with: nothing is live, in flight or due, and the version of its checkpoint is published."""
        config = self.config
        self.timeline = timeline
        self.published = version
        """Newest version that rollout may start from."""
        self.next_batch = version
        """b: id of the next batch to be formed."""
        self.attempt_floor = self.highest_attempt = self.highest_attempt + 1
        """New trajectories of this timeline start at this attempt."""

        self.groups: dict[int, Group] = {}
        """Live groups, consumed ones too, until they are trained or dropped."""
        self.buffer = ReadyBuffer()
        self.queued: list[tuple[int, int, int]] = []
        """Heap (tag, uid, traj_uid) of trajectories to send; entries of dropped groups are skipped when they come up."""
        self.in_flight = 0
        self.turns: dict[tuple[int, int], Trajectory] = {}
        """In flight, and waiting for an engine that is fit for the next turn."""
        self.watermark = Watermark(
            config.in_flight_target, config.n, config.highest_watermark, config.watermark_step, fixed=config.watermark > 0
        )
        self.drops_in_a_row = 0
        self.batches: deque[Batch] = deque()
        """Formed and not in training yet."""
        self.training: Batch | None = None

        self.uncovered: deque[Group] = deque()
        """Trained or dropped at a version that no durable checkpoint has reached yet, in that order: a rollback takes them back."""
        self.uncovered_rows = 0
        self.uncovered_batches: deque[Batch] = deque()
        self.saving: dict[BatchId, None] = {}
        self.saved = version
        """Newest version with a durable checkpoint (the one the run began with included): the recycling mark, since batch b is covered
        by versions above b."""
        self.save_failures = 0
        """In a row."""
        self.last_save_failures = 0
        """In a row, of saves that the end waits for."""

        self.routing = Routing()
        self.unsynced: dict[str, None] = {}
        """Engines that are up, stale and not held by an evaluation: to be synced."""
        self.evaluations_due: deque[int] = deque()
        """Versions whose evaluation no engine has been pinned for yet."""
        self.evaluations: dict[EvaluationId, tuple[int, ...]] = {}
        """Under way -> the versions that were due and get its scores."""
        self.scored: list[EvaluationRow] = []
        """Those of versions that no durable checkpoint has reached yet."""
        self.evaluation_failures = 0
        self.evaluated = self.covered_evaluation = self.origin.version - 1
        """Newest version that an evaluation was pinned to; the newest scored one that a checkpoint covers."""

    # -- what the transitions are made of

    def group_id(self, uid: int) -> GroupId:
        return GroupId(self.timeline, uid)

    def batch_id(self, batch: int) -> BatchId:
        return BatchId(self.timeline, batch)

    def emit(self, action: AnyAction) -> None:
        self.actions.append(action)

    def touch(self, thing: Group | Trajectory) -> None:
        """It changed: its row is written when the transition is over, once."""
        if not thing.is_touched:
            thing.is_touched = True
            self.touched.append(thing)

    def journal_batch(self, batch: Batch, state: Literal["queued", "training", "trained", "covered", "undone"]) -> None:
        self.journal.append(BatchRow(batch.id.timeline, batch.id.batch, state, batch.groups))

    def journal_evaluation(
        self, due: int, state: Literal["due", "pinned", "scored", "covered", "undone"], version: int = -1, score: float | None = None
    ) -> EvaluationRow:
        row = EvaluationRow(due, state, self.timeline, version, score)
        self.journal.append(row)
        return row

    def journal_timeline(self) -> None:
        """That this timeline begins, where and by which schedule."""
        config = self.config
        hops = tuple(hop.operator for hop in config.hops)
        sizes = (config.n, config.groups_per_batch, config.max_lag, config.last)
        self.journal.append(TimelineRow(self.timeline, self.published, *sizes, hops, config.policy))
        self.journal_counters()

    def journal_counters(self) -> None:
        self.journal.append(Counters(self.origin.uid, self.attempt_floor, self.highest_attempt, self.covered_evaluation, self.source_end))

    def write_journal(self) -> None:
        """The rows of all that this transition changed, then what is covered by now."""
        for thing in self.touched:
            thing.is_touched = False
            if isinstance(thing, Trajectory):
                self.journal.append(
                    TrajectoryRow(
                        thing.uid, thing.traj_uid, thing.attempt, thing.version_tag, thing.state, thing.engine, thing.rows, thing.spans,
                        thing.hops_done,
                    )
                )  # fmt: skip
            else:
                self.journal.append(
                    GroupRow(
                        thing.uid, thing.tag, thing.state, thing.batch, self.timeline, thing.hops_done, thing.version, thing.reason,
                        thing.detail,
                    )
                )  # fmt: skip
        self.touched.clear()
        if self.covered:
            self.journal.append(Finished(tuple(self.covered)))
            self.covered.clear()

    def recycle(self) -> None:
        """Give the rows up that no rollback or resume can ask for from this transition on."""
        uids = (*self.abandoned, *self.covered)
        if uids:
            self.emit(Recycle(uids))
            self.abandoned.clear()

    def fail(self, why: str) -> None:
        """End the run with this transition; the first reason stands."""
        self.failure = self.failure or why

    def arm(self, kind: WaitKind, subject: Subject, operator: str = "", after: float = 0.0) -> None:
        """Start the timer of a wait that begins ``after`` seconds from now."""
        name = wait_name(kind, subject, operator)
        self.armed[name] = Armed(kind, subject, operator)
        self.emit(Arm(name, self.seconds[kind] + after))

    def disarm(self, kind: WaitKind, subject: Subject, operator: str = "") -> None:
        """Of a timer that has run out already nothing is left to disarm."""
        name = wait_name(kind, subject, operator)
        if self.armed.pop(name, None) is not None:
            self.emit(Disarm(name))

    # -- what is read from outside

    @property
    def source_exhausted(self) -> bool:
        """No prompt can be drawn any more."""
        if self.is_all_filtered:
            return True
        if self.pending:
            return False
        prompts = self.config.prompts or self.rows * self.config.epochs
        return 0 < prompts <= self.next_uid or 0 <= self.source_end <= self.next_uid

    @property
    def is_all_filtered(self) -> bool:
        """Every row of the data has a pass rate outside the bounds."""
        return 0 < self.rows <= self.pass_rates.outside

    @property
    def waiting(self) -> int:
        """Groups in no batch yet."""
        return self.buffer.waiting_count

    @property
    def ready(self) -> int:
        """Groups that a batch can be formed of."""
        return self.buffer.ready_count

    @property
    def queue_depth(self) -> int:
        """Batches formed and not in training yet."""
        return len(self.batches)

    @property
    def masked_tokens(self) -> int:
        """Sampled tokens in batches that are too old to be trained on, under the policy *mask*."""
        if self.config.policy != "mask":
            return 0
        return sum(tokens for gap, tokens in self.totals.staleness.items() if gap > self.config.max_lag)

    def counters(self) -> dict[str, int]:
        """Levels and totals as flat metrics; ``dropped/REASON`` and ``staleness/GAP`` (tokens, all batches) as they occur."""
        totals = self.totals
        flat = {
            "published_version": self.published,
            "in_flight": self.in_flight,
            "in_flight_target": self.watermark.value,
            "watermark_raised": self.watermark.raised,
            "watermark_lowered": self.watermark.lowered,
            "waiting_groups": self.waiting,
            "ready_groups": self.ready,
            "queue_depth": self.queue_depth,
            "groups_drawn": self.next_uid - self.origin.uid - len(self.pending),
            "trained_groups": totals.trained_groups,
            "trained_rows": totals.trained_rows,
            "dropped_groups": totals.dropped.total(),
            "masked_tokens": self.masked_tokens,
            "failed_attempts": totals.failed_attempts,
            "failed_syncs": totals.failed_syncs,
            "failed_saves": totals.failed_saves,
            "uncovered_rows": self.uncovered_rows,
            "engine_deaths": totals.engine_deaths,
            "rollbacks": totals.rollbacks,
            "waiting_turns": len(self.turns),
            "stale_events": totals.ignored.total(),
        }
        flat |= {f"dropped/{reason}": count for reason, count in sorted(totals.dropped.items())}
        return flat | {f"staleness/{gap}": tokens for gap, tokens in sorted(totals.staleness.items())}
