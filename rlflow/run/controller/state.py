"""What the controller knows: counters, ids, versions and states. No clock, socket, process, tensor or random source.

``State`` is owned and changed by ``decide`` alone; ``copy.deepcopy`` of it is another state. What it holds of groups, engines and batches
is in live.py; none of it grows with the length of a run.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from .buffer import ReadyBuffer
from .events import AnyAction, Arm, Disarm, Recycle
from .ids import BatchId, EvaluationId, GroupId
from .journal import Change, Counters, EvaluationRow, Finished, TimelineRow
from .live import Batch, Engine, Group, Trajectory
from .passrates import PassRates
from .routing import Routing
from .schedule import Config, Hop, Origin
from .totals import Totals
from .waits import WAITS, Armed, Subject, WaitKind, wait_name
from .watermark import Watermark

__all__ = ["Batch", "Config", "Engine", "Group", "Hop", "Origin", "State", "Trajectory"]


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
        self.drawn = origin.uid
        """Uids below this number were drawn on a timeline before this one."""
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
        self.journal.append(batch.row(state))

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
        self.journal.append(TimelineRow(self.timeline, self.published, *sizes, hops, config.policy, config.least_left))
        self.journal_counters()

    def journal_counters(self) -> None:
        numbers = (self.attempt_floor, self.highest_attempt, self.covered_evaluation, self.source_end, self.drawn)
        self.journal.append(Counters(self.origin.uid, *numbers))

    def write_journal(self) -> None:
        """The rows of all that this transition changed, then what is covered by now."""
        for thing in self.touched:
            thing.is_touched = False
            self.journal.append(thing.row() if isinstance(thing, Trajectory) else thing.row(self.timeline))
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
