"""What the controller hears and what it asks for: the two sides of ``decide(state, event) -> actions``.

    workers, engines, timers, the user  --- Event --->  decide  --- Action --->  the loop performs it

An event whose timeline, attempt or start is not the current one changes nothing and is counted. An action is idempotent by its id:
performing it again after a crash is harmless. Actions are performed in the order of the list (``Save`` and ``Sync`` stand before the
``Train`` that would change the weights they are about).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .ids import BatchId, EvaluationId, GroupId, Span, SyncId, TrajectoryId, Unit

# -- events -----------------------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, tag=True):
    """Something that happened; written by the loop, read by ``decide``."""


class RunStarted(Event, frozen=True):
    """The first event of a run: nothing is up yet."""


class WorkersUp(Event, frozen=True):
    """Every worker that is not an engine (trainers, the host of operators) can be called. ``start``: of the action ``StartWorkers``."""

    start: int


class EngineUp(Event, frozen=True):
    """The engine answers and holds no request but ours: all others on it were aborted.

    ``capacity``: trajectories it can run at once. ``rows``: prompts of the data set that is trained on, 0: not told.
    """

    engine: str
    start: int
    capacity: int
    rows: int = 0


class EngineDown(Event, frozen=True):
    """Incarnation ``start`` (of the action ``Start``) of the engine is gone or could not be started."""

    engine: str
    start: int
    why: str


class Free(Event, frozen=True):
    """The engine can run ``capacity`` trajectories at once from now on. A level, not an edge: no wake-up can be lost."""

    engine: str
    capacity: int


class Landed(Event, frozen=True):
    """The trajectory is complete and its ``rows`` leaf rows (>= 1) are stored. ``spans``: which version sampled which tokens.

    ``judged``: (tries, passes) where it was judged as it landed.
    """

    trajectory: TrajectoryId
    rows: int
    spans: tuple[Span, ...]
    judged: tuple[int, int] = (0, 0)


class Failed(Event, frozen=True):
    """This attempt of the trajectory is over and left nothing behind.

    ``lost``: with the rollout process that played it, beside an engine that had not its last turn; the trajectory is not to blame.
    """

    trajectory: TrajectoryId
    why: str
    lost: bool = False


class Turn(Event, frozen=True):
    """A turn of the trajectory ended: number ``turn`` may be asked for (the first request of a trajectory is turn 0)."""

    trajectory: TrajectoryId
    turn: int


class Ran(Event, frozen=True):
    """An operator before boarding returned for its unit. ``drop``: a filter says no, or the operator failed for good on this unit.

    ``left``: of a group of which a filter keeps a part, the numbers of the trajectories that stay; empty: all.

    A worker that dies while it runs one tells ``TrainerDown`` and nothing else: the unit is not to blame.

    ``judged``: (tries, passes) of the unit, where the operator judges.
    """

    operator: str
    unit: Unit
    verdict: Literal["keep", "drop"] = "keep"
    why: str = ""
    judged: tuple[int, int] = (0, 0)
    left: tuple[int, ...] = ()


class Trained(Event, frozen=True):
    """Every worker with a ``.move`` in the batch has finished it, and the weights of version ``batch + 1`` can be synced.

    ``passed``: what a pass rate is made of, one ``(uid, tries, passes)`` for each group that has one.
    """

    batch: BatchId
    passed: tuple[tuple[int, int, int], ...] = ()


class TrainFailed(Event, frozen=True):
    """An operator of the batch scope raised: the batch cannot be trained. A worker that dies tells ``TrainerDown`` and nothing else."""

    batch: BatchId
    why: str


class GroupFailed(Event, frozen=True):
    """An operator of the batch scope failed on this group of the batch in training and on no other: its seat stays empty."""

    batch: BatchId
    uid: int
    why: str


class TrainerDown(Event, frozen=True):
    """A worker that is not an engine is gone, or could not be started. ``start``: of the action ``StartWorkers`` that made it."""

    worker: str
    start: int
    why: str


class Synced(Event, frozen=True):
    """The engine was probed and really serves the version of the sync."""

    sync: SyncId


class SyncFailed(Event, frozen=True):
    sync: SyncId
    why: str


class Evaluated(Event, frozen=True):
    """Every held-out item was scored once, all by the version of the evaluation. ``score``: what checkpoints are compared by."""

    evaluation: EvaluationId
    score: float | None = None


class EvaluationFailed(Event, frozen=True):
    evaluation: EvaluationId
    why: str


class Saved(Event, frozen=True):
    """The checkpoint of version ``batch + 1`` is durable."""

    batch: BatchId


class SaveFailed(Event, frozen=True):
    batch: BatchId
    why: str


class Timeout(Event, frozen=True):
    """A timer that ``Arm`` set ran out."""

    name: str


class SourceEnd(Event, frozen=True):
    """There is no prompt beyond those drawn so far."""


class Stop(Event, frozen=True):
    """The user wants the run to end: after the running train step and a save; a second one at once."""


AnyEvent = (
    RunStarted | WorkersUp | EngineUp | EngineDown | Free | Landed | Failed | Turn | Ran | Trained | TrainFailed | GroupFailed | TrainerDown
    | Synced | SyncFailed | Evaluated | EvaluationFailed | Saved | SaveFailed | Timeout | SourceEnd | Stop
)  # fmt: skip

# -- actions ----------------------------------------------------------------------------------------------------------------------


class Action(msgspec.Struct, frozen=True, tag=True):
    """Something to be done; written by ``decide``, performed by the loop."""


class Start(Action, frozen=True):
    """Start the process of this engine, ``after`` seconds from now; answer ``EngineUp`` or ``EngineDown`` with the same ``start``."""

    engine: str
    start: int
    after: float = 0.0


class StartWorkers(Action, frozen=True):
    """End every worker that is not an engine and start all of them anew, ``after`` seconds from now, from a checkpoint (its version).

    ``None``: from what the run began with. Answer ``WorkersUp`` or ``TrainerDown`` with the same ``start``. What was asked of the workers
    before is void: no answer to it may be told any more.
    """

    start: int
    checkpoint: int | None
    after: float = 0.0


class Dispatch(Action, frozen=True):
    """Run the trajectory on the engine. Registration: its rows carry ``version_tag``. Answer ``Landed`` or ``Failed``."""

    trajectory: TrajectoryId
    engine: str
    version_tag: int


class Continue(Action, frozen=True):
    """Ask the engine for this turn of the trajectory; not counted against the watermark. Answer ``Turn``, ``Landed`` or ``Failed``."""

    trajectory: TrajectoryId
    turn: int
    engine: str


class Abort(Action, frozen=True):
    """This attempt is no longer wanted: stop it, forget its rows and what operators made of its whole group. No answer is needed."""

    trajectory: TrajectoryId


class Run(Action, frozen=True):
    """Run an operator that the plan places before boarding on the rows of the unit; answer ``Ran``."""

    operator: str
    unit: Unit


class Train(Action, frozen=True):
    """Run the batch scope on these groups and train it; answer ``Trained``. Rows are ordered (uid, traj_uid, leaf)."""

    batch: BatchId
    groups: tuple[int, ...]
    trajectories: tuple[TrajectoryId, ...]


class Sync(Action, frozen=True):
    """Bring the weights of the version (the published one) to the engine and probe them; answer ``Synced``/``SyncFailed``."""

    sync: SyncId


class Evaluate(Action, frozen=True):
    """Score the held-out set on this engine, which holds the version and is not synced before the answer."""

    evaluation: EvaluationId


class Void(Action, frozen=True):
    """The scores of this evaluation are not wanted any more: end its requests, report nothing. No answer is needed."""

    evaluation: EvaluationId


class Save(Action, frozen=True):
    """Write the checkpoint of version ``batch + 1``; answer ``Saved``/``SaveFailed``."""

    batch: BatchId


class Drop(Action, frozen=True):
    """The group is not trained: free its blocks; its row files stay until ``Recycle``.

    ``reason`` is one of a few words (a metric's name), ``detail`` says more.
    """

    group: GroupId
    reason: str
    detail: str


class Recycle(Action, frozen=True):
    """No rollback or resume will ask for these rows again: free the blocks of these groups, if any are left, and delete their row files."""

    uids: tuple[int, ...]


class Warn(Action, frozen=True):
    """Tell the user; the run goes on."""

    what: str


class Arm(Action, frozen=True):
    """Send ``Timeout(name)`` in ``seconds``, unless it is disarmed before."""

    name: str
    seconds: float


class Disarm(Action, frozen=True):
    name: str


class Finish(Action, frozen=True):
    """The last action of a run. ``failed`` means exit code 1."""

    outcome: Literal["done", "stopped", "failed"]
    why: str


AnyAction = (
    Start | StartWorkers | Dispatch | Continue | Abort | Run | Train | Sync | Evaluate | Void | Save | Drop | Recycle
    | Warn | Arm | Disarm | Finish
)  # fmt: skip
