"""Rows before they board: trajectories and whole groups, asked for, kept, given up, brought back.

Dispatch ──▶ rollout process ──row file──▶ Done ──▶ Ready ──▶ Landed
                │ ▲ ▲ Abort: its wait and its requests are ended, and what it left is freed
                │ └─┼── Continue, with the address of the engine that the next turn is asked of
                └───┴── Turn
Run ──────▶ host ─────────────row file──▶ Done ──▶ Ready ──▶ Ran
Train ────▶ `rows`: a row that is not in the pool (of a resumed run, or one that was trained before a rollback) is read from its file
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..compile.ir import Node
from ..data.pool.protocol import Key
from ..errors import DataError, RlflowError, WorkerDied
from . import rowfiles
from .blocks import Blocks
from .calls import BACKSTOP
from .controller import events as ev
from .controller.ids import GroupId, Span, TrajectoryId
from .controller.order import prompt_of
from .controller.state import State, Trajectory
from .controller.waits import WaitKind
from .messages import Abort, Call, Continue, Done, Source
from .ready import Landed, OfGroup, Ready
from .report import KEEPS_NO_ROW
from .staff import Staff

DEATH_SECONDS = 0.5  # within them the end of a process is told, if it is that what made a call fail


@dataclass
class _Running:
    """beside: the engine whose rollout process plays it, to the end. engine: that of its last turn. call: None: not sent yet."""

    beside: str
    engine: str
    call: int | None = None


class Sampling:
    """What the run holds of live groups. tell: the answers go there. seed: of the order of the data. rows: folder of the row files."""

    def __init__(self, state: State, staff: Staff, blocks: Blocks, tell: Callable[[ev.AnyEvent], None], *, seed: int, rows: Path) -> None:
        self.state, self.staff, self.blocks, self.tell, self.seed, self.rows_folder = state, staff, blocks, tell, seed, rows
        self.view, self.caller = staff.view, staff.caller
        self.ready = Ready()
        self._running: dict[TrajectoryId, _Running] = {}
        self._given_up: set[TrajectoryId] = set()  # while they ran: their rows are freed when they arrive

    def _seconds(self, kind: WaitKind) -> float:
        return self.state.config.seconds(kind) + BACKSTOP

    # --- trajectories -------------------------------------------------------------------------------------------------------------
    def dispatch(self, action: ev.Dispatch) -> Coroutine[Any, Any, None]:
        """The job that gets the rows. From now on `abort` is about it; one that is aborted before it begins sends nothing."""
        self._running[action.trajectory] = _Running(action.engine, action.engine)
        return self._sample(action)

    async def _sample(self, action: ev.Dispatch) -> None:
        trajectory, sampler = action.trajectory, self.view.sampler
        try:
            if trajectory in self._given_up:
                return
            call = self._call(action)
            self._running[trajectory].call = call.id
            done = await self.caller.rollout(
                sampler, action.engine, call, self._seconds("trajectory"), turned=lambda turn: self.tell(ev.Turn(trajectory, turn))
            )
        except RlflowError as error:
            # the end of the engine that `decide` has it on is told already; that of the one beside which it is played may be another's
            engine = self._running[trajectory].engine
            if trajectory not in self._given_up and not await self.staff.engine_ended(engine, within=DEATH_SECONDS):
                self.tell(ev.Failed(trajectory, str(error), lost=isinstance(error, WorkerDied)))
        else:
            self._land(trajectory, done)
        finally:
            del self._running[trajectory]
            self._given_up.discard(trajectory)

    def _call(self, action: ev.Dispatch) -> Call:
        """Raises EngineError for an engine that has gone down since."""
        trajectory = action.trajectory
        _, row = prompt_of(trajectory.uid, self.staff.rows[self.view.source.id], self.seed)
        prompt = (row, trajectory.uid, trajectory.traj_uid, trajectory.attempt)
        keep = self._name(rowfiles.trajectory_rows(self.rows_folder, trajectory))
        return self.staff.engine_call(
            self.view.sampler.id, self.state.timeline, action.version_tag, action.engine, prompt=prompt, keep=keep
        )

    def _land(self, trajectory: TrajectoryId, done: Done) -> None:
        assert done.key is not None
        self.blocks.put(done.key)
        if trajectory in self._given_up:
            self.blocks.free([done.key])
            return
        self.ready.land(trajectory, Landed(trajectory.uid, done.key, done.lengths, done.metrics))
        rows = len(done.lengths)
        self.tell(ev.Landed(trajectory, rows, tuple(Span(*span) for span in done.spans), self.view.judgement(done.metrics, rows)))

    def go_on(self, action: ev.Continue) -> None:
        """Its next turn is to be asked of this engine. That it, or the trajectory, has ended meanwhile `decide` hears anyhow."""
        running, address = self._running.get(action.trajectory), self.staff.address(action.engine)
        if running is None:
            return
        running.engine = action.engine
        if running.call is not None and address is not None:
            self.caller.rollout_process(running.beside).send(Continue(running.call, action.turn, address))

    def abort(self, trajectory: TrajectoryId) -> None:
        """This attempt is not wanted any more, wherever it is, nor what was made of its whole group."""
        self.blocks.free([*self.ready.forget(trajectory), *self.ready.forget_made(trajectory.uid)])
        if trajectory in self._running:
            self._given_up.add(trajectory)
            running = self._running[trajectory]
            if running.call is not None:
                self.caller.rollout_process(running.beside).send(Abort(running.call))

    def forget(self, uids: Iterable[int]) -> None:
        """These groups are trained or dropped."""
        self.blocks.free(self.ready.forget_groups(uids))

    # --- whole groups -------------------------------------------------------------------------------------------------------------
    async def hop(self, action: ev.Run) -> None:
        """An operator of a whole group before boarding; an error or a filter that keeps no row drops the group.

        Raises DataError for a filter that keeps a part of a group which it does not declare.
        """
        assert isinstance(action.unit, GroupId)
        node, uid = self.view.hop(action.operator), action.unit.uid
        try:
            group = self.state.groups.get(uid)
            if group is None:
                return
            trajectories = [t.id for t in group.left]
            landed, made = await self.of_group(uid, trajectories, group.hops_done)
            rows = Source(self.view.sampler.id, tuple(t.key for t in landed))
            sources = (rows, *(Source(writer, (one.key,), one.take) for writer, one in made.items()))
            keep = self._name(self._group_rows(uid, node.name))
            call = Call(self.caller.new_id(), node.id, timeline=self.state.timeline, sources=sources, keep=keep)
            done = await self.caller.call(node, 0, call, self._seconds("operator"))
        except RlflowError as error:
            if not await self.staff.workers_ended(within=DEATH_SECONDS):
                self.tell(ev.Ran(action.operator, action.unit, "drop", str(error)))
            return
        self._keep_made(uid, node.id, done)
        kept, given = int(done.metrics.get("rows", 0)), {t.traj_uid: len(one.lengths) for t, one in zip(trajectories, landed, strict=True)}
        judged = self.view.judgement(done.metrics, sum(given.values()))
        if node.rows != "filter":
            self.tell(ev.Ran(action.operator, action.unit, judged=judged))
        elif not kept:
            self.tell(ev.Ran(action.operator, action.unit, "drop", f"`{node.name}` {KEEPS_NO_ROW}", judged))
        else:
            left = left_of(node, uid, given, kept, done.left)
            self.blocks.free([key for t in trajectories if left and t.traj_uid not in left for key in self.ready.forget(t)])
            self.tell(ev.Ran(action.operator, action.unit, judged=judged, left=left))

    def _keep_made(self, uid: int, node: int, done: Done) -> None:
        """The block of an operator of a whole group; nobody reads it if the group was dropped while the operator ran."""
        if done.key is None:
            return
        self.blocks.put(done.key)
        if self.ready.group(uid):
            self.ready.put(uid, node, done.key)
        else:
            self.blocks.free([done.key])

    # --- what lies in files -------------------------------------------------------------------------------------------------------
    async def of_group(self, uid: int, trajectories: Sequence[TrajectoryId], hops_done: int) -> tuple[list[Landed], dict[int, OfGroup]]:
        """Rows of these trajectories of a landed group, in their order, and what its first operators made of it, by node.

        Raises DataError or OperatorError for a row file that is missing or damaged.
        """
        for trajectory in trajectories:
            if trajectory not in self.ready:
                key, done = await self._restore(uid, rowfiles.trajectory_rows(self.rows_folder, trajectory))
                self.ready.land(trajectory, Landed(uid, key, done.lengths, done.metrics))
        for node in self.view.hops[:hops_done]:
            if self.view.makes_block(node) and node.id not in self.ready.made(uid):
                key, _ = await self._restore(uid, await self._newest(uid, node.name))
                self.ready.put(uid, node.id, key)
        hops = {node.id: i for i, node in enumerate(self.view.hops)}
        if uid not in self.state.groups:
            raise DataError(f"prompt {uid} was dropped")
        members = self.state.groups[uid].trajectories
        made = {node: OfGroup(key, *self._rows_left(members, hops[node])) for node, key in self.ready.made(uid).items()}
        return [self.ready[trajectory] for trajectory in trajectories], made

    def _rows_left(self, members: Sequence[Trajectory], hop: int) -> tuple[int, tuple[int, ...]]:
        """Of the block that this operator made of a group: its rows, and those of trajectories that are left."""
        taken_out = {node.name for node in self.view.hops[:hop]}
        there = [member for member in members if member.reason not in taken_out]
        ends = [*accumulate((member.rows for member in there), initial=0)]
        left = [row for member, end in zip(there, ends, strict=False) if not member.reason for row in range(end, end + member.rows)]
        return ends[-1], tuple(left)

    async def _restore(self, uid: int, path: Path) -> tuple[Key, Done]:
        """By the host, into its own lane. Raises DataError for a group that was dropped meanwhile."""
        done = await self.caller.restore(self._name(path), self._seconds("operator"))
        assert done.key is not None
        self.blocks.put(done.key)
        if uid not in self.state.groups:
            self.blocks.free([done.key])
            raise DataError(f"prompt {uid} was dropped")
        return done.key, done

    async def _newest(self, uid: int, operator: str) -> Path:
        """What it made of a group last. Its folder is read in a thread: nobody else waits for the disk."""
        there = await asyncio.to_thread(rowfiles.names, self.rows_folder, uid)
        made = rowfiles.newest(there, operator)
        return self.rows_folder / str(uid) / made if made else self._group_rows(uid, operator)

    def _group_rows(self, uid: int, operator: str) -> Path:
        return rowfiles.group_rows(self.rows_folder, uid, operator, self.state.timeline)

    def recycle(self, uids: Sequence[int]) -> None:
        """No rollback or resume will ask for these rows again. Done when it returns: a group may be drawn anew in the same breath."""
        self.forget(uids)
        rowfiles.recycle(self.rows_folder, uids)

    def sweep(self) -> None:
        """Delete the rows that nothing in the state stands for: those of a run that was killed before it told of them."""
        groups = self.state.groups.values()
        stored = [t.id for group in groups for t in group.trajectories if t.state in ("landed", "dropped")]
        made = {group.uid: [node.name for node in self.view.hops[: group.hops_done]] for group in groups}
        rowfiles.sweep(self.rows_folder, stored, made)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.rows_folder))


def left_of(node: Node, uid: int, given: Mapping[int, int], kept: int, whose: Sequence[int]) -> tuple[int, ...]:
    """The trajectories of which a filter has left all rows; empty: all of them.

    given: rows by trajectory; kept: rows that it left; whose: the trajectory of each, where the filter declares that it takes groups apart.
    A group of which an earlier filter left too few is one that this filter has to drop, by leaving no row.
    Raises DataError for what it does not declare.
    """
    total = sum(given.values())
    if kept == total and len(given) >= node.least_kept:
        return ()
    if not node.least_kept:
        raise DataError(
            f"`{node.name}` keeps {kept} of the {total} rows of prompt {uid}: a filter per group keeps all of one or none, "
            "unless it declares how many trajectories it leaves at least: least_kept="
        )
    left = dict(sorted(Counter(whose).items()))
    for trajectory, rows in left.items():
        if given.get(trajectory) != rows:
            of = f"of {given[trajectory]}" if trajectory in given else "and was given none"
            raise DataError(f"`{node.name}` keeps {rows} rows {of} of trajectory {uid}.{trajectory}: a trajectory is trained whole or not")
    if len(left) < node.least_kept:
        kept_of = f"{len(left)} {'trajectory' if len(left) == 1 else 'trajectories'} of prompt {uid}"
        raise DataError(f"`{node.name}` keeps {kept_of}, and declares least_kept={node.least_kept}")
    return tuple(left)
