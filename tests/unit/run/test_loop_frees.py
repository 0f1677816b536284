"""A whole run in one process, on a real pool: what a filter drops is freed at the filter, and nothing outlives its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_loop
from small_loop import Engine, Trainer, TrainRows, interpreter_of, judge, prompts_of_a_test, sync

from operators.advantage import grpo
from operators.batching import dispatch, form_batch
from operators.fields import InputIds, IsPad, PositionIds, ResponseMask, TokenRewards, TokenScores, TrajUid, Uid
from operators.loss import ppo_clip
from operators.reward import shape_rewards
from operators.rows import micro_pack, pad, shard
from rlflow import Feedback, Record, RowsT, operator, pipeline
from rlflow.compile.ir import Node
from rlflow.data.pool.arena import ShmArena
from rlflow.data.pool.protocol import Key
from rlflow.data.pool.shm import ShmPool
from rlflow.run.batchscope import BatchScope
from rlflow.run.blocks import Blocks
from rlflow.run.calls import Caller
from rlflow.run.controller.books import Books
from rlflow.run.controller.events import Arm, Disarm, Stop
from rlflow.run.controller.journal import Change
from rlflow.run.controller.state import Config, Hop, State
from rlflow.run.controller.waits import WAITS
from rlflow.run.deleting import Deleter
from rlflow.run.interpret import block_of, fetch
from rlflow.run.loop import Loop
from rlflow.run.messages import Call, Done
from rlflow.run.report import Report
from rlflow.run.retention import Retention
from rlflow.run.rundir import RunDir
from rlflow.run.stream import Stream


class Named(Record):
    uid: Uid


@operator(per="group")
def checked(named: Named, uid: Uid, token_level_rewards: TokenRewards) -> TokenRewards:
    """Is handed one column twice, in a record and alone."""
    assert named.uid.tolist() == uid.tolist()
    return token_level_rewards.clone()


class Judged(Record):
    """What is kept or dropped."""

    input_ids: InputIds
    position_ids: PositionIds
    response_mask: ResponseMask
    is_pad: IsPad
    uid: Uid
    traj_uid: TrajUid
    token_level_scores: TokenScores


@operator(per="group", rows="filter")
def keep_odd(rows: RowsT, uid: Uid) -> RowsT:
    """Every second group, with nothing of it or all."""
    kept = object.__new__(type(rows))
    for name, value in vars(rows).items():
        object.__setattr__(kept, name, value if int(uid[0]) % 2 else value[:0])
    return kept


@pipeline
def filtered() -> None:
    actor, engine = Trainer("actor"), Engine("engine")
    policy = Feedback("policy", init=actor.load())
    sample = engine.rollout(policy.served, dispatch(prompts_of_a_test(), n=2))
    judged = Judged(
        input_ids=sample.input_ids, position_ids=sample.position_ids, response_mask=sample.response_mask, is_pad=sample.is_pad,
        uid=sample.uid, traj_uid=sample.traj_uid,
        token_level_scores=judge(sample.response_text, sample.answer, sample.response_mask).token_level_scores,
    )  # fmt: skip
    ready = form_batch(keep_odd(judged, sample.uid), prompts=2)
    rewards = checked(Named(uid=ready.uid), ready.uid, shape_rewards(ready.token_level_scores))
    adv = grpo(token_level_rewards=rewards, response_mask=ready.response_mask, uid=ready.uid, traj_uid=ready.traj_uid)
    rows = TrainRows(
        input_ids=ready.input_ids, position_ids=ready.position_ids, response_mask=ready.response_mask, is_pad=ready.is_pad,
        old_log_probs=actor.log_probs(policy.current, ready.uid, ready.response_mask), advantages=adv.advantages, uid=ready.uid,
    )  # fmt: skip
    micro = micro_pack(shard(pad(rows, multiple=1), on=actor), max_tokens=16)
    policy.close(sync(actor.train(policy.move, micro.loss(ppo_clip(0.2, 0.28))), engine))


class Here(Caller):
    """All processes of a run in this one. blocks: what was called, with the blocks in the pool just then."""

    def __init__(self, pool: ShmPool) -> None:
        self.view, self.interpreter = interpreter_of(filtered())
        super().__init__({}, self.interpreter.workers, [])
        self.pool, self.stream, self.blocks = pool, Stream(self.view, self.interpreter), list[tuple[str, int]]()

    async def call(self, node: Node, rank: int, call: Call, timeout: float) -> Done:
        self.blocks.append((node.name, self.pool.stats().keys))
        columns = {i: c for source in call.sources for i, c in fetch(self.view, node, source, self.pool).items()}
        made, numbers = self.interpreter.run(node, columns, version=call.version, cuts=call.cuts)
        read = {i: column for i, column in made.items() if i in self.view.facts.read}
        return Done(call.id, self.pool.put(block_of(read)) if read else None, metrics=numbers)

    async def rollout(self, node: Node, engine: str, call: Call, timeout: float, turned: Callable[[int], None] | None = None) -> Done:
        assert call.prompt is not None
        self.blocks.append((node.name, self.pool.stats().keys))
        block, lengths, spans, numbers = self.stream.sample(call.prompt[:3], call.version)
        sampled = tuple((call.version, start, end) for _, start, end in spans)  # this engine makes up a later version, too
        return Done(call.id, self.pool.put(block), lengths, sampled, numbers)

    async def on_owner(self, node: Node, call: Call, timeout: float) -> Done:
        return Done(call.id)

    def free(self, keys: Iterable[Key]) -> None:
        self.pool.release(list(keys))


class Staff:
    """The part of `rlflow.run.staff.Staff` that a loop asks: nobody dies."""

    def __init__(self, caller: Here, retention: Retention) -> None:
        self.retention, self.deleter = retention, Deleter()
        self.caller, self.view, self.engines = caller, caller.view, {"engine": caller.view.engine}
        self.rows, self.blocks, self.prepared = {caller.view.source.id: 3}, Blocks(caller.free), asyncio.Event()
        self.prepared.set()

    async def start_engine(self, name: str, timeout: float) -> int:
        return 8

    async def end_workers(self) -> None: ...
    async def start_workers(self, version: int | None, timeout: float) -> None: ...

    async def workers_ended(self, within: float) -> bool:
        return False

    def engine_call(self, node: int, timeline: int, version: int, engine: str, **more: Any) -> Call:
        return Call(self.caller.new_id(), node, version, engine=self.engines[engine].id, timeline=timeline, **more)

    async def save(self, timeline: int, version: int, timeout: float) -> None: ...


class Kept(Books):
    """A ledger in memory."""

    def commit(self, changes: Sequence[Change]) -> None:
        self.apply(changes)

    def trained(self, timeline: int, batch: int, groups: Sequence[tuple[int, int, int]]) -> None: ...


class Silent:
    """Keeps the peak of the pool in each step."""

    def __init__(self) -> None:
        self.peaks: list[int] = []

    def step(self, line: Mapping[str, Any]) -> None:
        self.peaks.append(line["pool_peak_bytes"])

    def held_out(self, line: Mapping[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


@pytest.fixture
def pool() -> Iterator[ShmPool]:
    with ShmArena.create(["host"], 1 << 22) as arena:
        pool = ShmPool.attach(arena.handle(), lane="host")
        yield pool
        pool.close()


def run(pool: ShmPool, folder: Path) -> tuple[Here, Report]:
    """Three batches of two groups of two trajectories."""
    here = Here(pool)
    config = Config(n=2, groups_per_batch=2, max_lag=0, last=2, engines=("engine",), hops=(Hop("keep_odd", "group"),))

    async def loop() -> Report:
        staff: Any = Staff(here, Retention(run_dir.path / "checkpoints"))
        report = Report(here.view, run_dir, Silent(), {}, staff.blocks)
        books = Kept()
        finish = await asyncio.wait_for(Loop(here.view, staff, State(config), report, books, seed=0).run(), 60)
        assert finish.outcome == "done", finish
        return report

    run_dir = RunDir.create(folder, "one", "filtered")
    try:
        return here, asyncio.run(loop())
    finally:
        run_dir.close()


def test_what_a_filter_drops_is_freed_at_the_filter(pool: ShmPool, tmp_path: Path) -> None:
    here, _ = run(pool, tmp_path)
    sampled = sum(name == "engine.rollout" for name, _ in here.blocks)
    assert sampled == 2 * (3 * 2 + 6)  # uids 1, 3 ... 11 are trained, and the six even ones before them dropped
    trained = [blocks for name, blocks in here.blocks if name == "actor.train"]
    # two groups of two trajectories, advantages, old log-probs: nothing of the groups that were dropped, nothing of earlier batches
    assert trained == [4 + 2] * 3
    assert max(blocks for _, blocks in here.blocks) <= 4 + 2


def test_after_the_run_the_pool_is_empty(pool: ShmPool, tmp_path: Path) -> None:
    _, report = run(pool, tmp_path)
    assert (pool.stats().keys, pool.stats().bytes, report.blocks.outstanding) == (0, 0, 0)


def test_the_pool_holds_what_the_plan_says(pool: ShmPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rows long enough that offsets, headers and alignment of the blocks are next to nothing."""
    monkeypatch.setattr(small_loop, "PROMPTS", [[10] * 2000] * 3)
    here, report = run(pool, tmp_path)
    # 2 groups x 2 trajectories j = 0, 1 x 2 leaves of j + 1 and j + 2 tokens after the prompt: 2 on the mean
    planned = here.view.plan.peak(B=8, S=2002, Q=2000, text=5)["pool"]
    batch = {"shape_rewards", "rewards", "advantages", "log_probs"}
    assert planned.call == "actor.log_probs"
    assert {share.field for share in planned.shares} - batch == {
        "input_ids", "position_ids", "response_mask", "is_pad", "uid", "traj_uid", "token_level_scores",
    }  # fmt: skip
    screen: Any = report.screen
    # it waits for nothing of the batch, so the plan counts all that is made there; of the two rewards one was freed before
    freed = next(share.bytes for share in planned.shares if share.field == "shape_rewards")
    assert planned.bytes - freed <= max(screen.peaks) <= 1.01 * planned.bytes


def test_a_block_that_outlives_its_batch_ends_the_run(pool: ShmPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchScope, "_has_read", lambda *_: None)
    with pytest.raises(AssertionError, match=r"after batch 0 the pool holds .* a block was not freed"):
        run(pool, tmp_path)


def test_a_save_whose_time_is_up_is_over_before_the_next_one_begins(pool: ShmPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def save(_: Staff, timeline: int, version: int, timeout: float) -> None:
        told.append(f"version {version}")
        try:
            await asyncio.sleep(60 if len(told) == 1 else 0)
        except asyncio.CancelledError:
            told.append("given up")
            raise

    monkeypatch.setattr(Staff, "save", save)
    monkeypatch.setitem(WAITS, "save", replace(WAITS["save"], seconds=0.2))
    run(pool, tmp_path)
    assert told == ["version 3", "given up", "version 3"]


def test_a_timeout_that_comes_after_its_wait_is_over_is_not_that_of_the_next_wait(pool: ShmPool, tmp_path: Path) -> None:
    here, run_dir = Here(pool), RunDir.create(tmp_path, "one", "filtered")

    async def heard() -> bool:
        staff: Any = Staff(here, Retention(run_dir.path / "checkpoints"))
        state = State(Config(n=2, groups_per_batch=2, max_lag=0, last=2, engines=("engine",)))
        loop = Loop(here.view, staff, state, Report(here.view, run_dir, Silent(), {}, staff.blocks), Kept(), seed=0)
        for action in (Arm("worker start", 0.0), Disarm("worker start"), Arm("worker start", 60.0)):
            loop._perform(action)
            await asyncio.sleep(0.02)  # the first one runs out; nobody listens yet
        state.arm("worker start", "")
        loop.tell(Stop())
        loop.tell(Stop())  # the run ends at once
        await asyncio.wait_for(loop.run(), 10)
        return state.totals.rollbacks > 0

    try:
        assert not asyncio.run(heard())
    finally:
        run_dir.close()
