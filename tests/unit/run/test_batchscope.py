"""One batch from its rows to the call that trains: real operators, pool and row plans; only the process boundary is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from small_loop import interpreter_of, small

from rlflow.compile.ir import Node
from rlflow.data.pool.arena import ShmArena
from rlflow.data.pool.protocol import Key
from rlflow.data.pool.shm import ShmPool
from rlflow.errors import OperatorError
from rlflow.run.batchscope import BatchResult, BatchScope, GroupsFailed
from rlflow.run.calls import Caller
from rlflow.run.controller.ids import BatchId
from rlflow.run.graph import GraphView
from rlflow.run.interpret import Interpreter, block_of, fetch
from rlflow.run.messages import Call, Done
from rlflow.run.ready import Landed
from rlflow.run.stream import Stream


@dataclass
class Here(Caller):
    """Calls operators in this process, on the real pool, a rank after the other."""

    view: GraphView
    interpreter: Interpreter
    pool: ShmPool
    calls: list[tuple[str, int, Call]] = field(default_factory=list)
    broken: str = ""  # what raises, for rows with a text that holds `poison`, so many times
    poison: str = ""
    times: int = 99
    made: dict[Key | None, str] = field(default_factory=dict)  # block -> who made it
    freed: list[tuple[str, int]] = field(default_factory=list)  # whose block, after how many calls

    def __post_init__(self) -> None:
        super().__init__({}, self.interpreter.workers, [])

    async def call(self, node: Node, rank: int, call: Call, timeout: float) -> Done:
        self.calls.append((node.name, rank, call))
        await asyncio.sleep(0)
        columns = {i: c for source in call.sources for i, c in fetch(self.view, node, source, self.pool).items()}
        texts = [text for column in columns.values() if column.dtype == "text" for text in column.to_list()]
        if node.name == self.broken and self.times and any(self.poison in text for text in texts):
            self.times -= 1
            raise OperatorError(f"`{node.name}` on `host` raised ValueError: no")
        made, numbers = self.interpreter.run(node, columns, version=call.version, cuts=call.cuts)
        read = {i: column for i, column in made.items() if i in self.view.facts.read}
        key, numbers = self.pool.put(block_of(read)) if read else None, numbers | self.view.measure(made)
        done = Done(call.id, key, metrics=numbers, scores=self.view.scores(made))
        self.made[done.key] = node.name
        return done

    def put(self, key: Key) -> None: ...

    def free(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.freed.append((self.made[key], len(self.calls)))
            self.pool.release([key])


@dataclass
class Case:
    here: Here
    landed: list[Landed]

    def scope(self, batch: int = 0) -> BatchScope:
        return BatchScope(self.here.view, self.here, BatchId(0, batch), self.landed, {}, self.here, seed=0, timeout=5)

    def run(self, batch: int = 0) -> BatchResult:
        async def run() -> BatchResult:
            return await self.scope(batch).run()

        return asyncio.run(run())

    @property
    def given(self) -> list[Any]:
        return next(w.given for w in self.here.workers.values() if hasattr(w, "given"))


@pytest.fixture
def pool() -> Iterator[ShmPool]:
    with ShmArena.create(["host"], 1 << 22) as arena:
        pool = ShmPool.attach(arena.handle(), lane="host")
        yield pool
        pool.close()


def case(pool: ShmPool, **parameters: Any) -> Case:
    """Three prompts x n trajectories x two leaves, landed."""
    view, interpreter = interpreter_of(small(**parameters))
    stream = Stream(view, interpreter)
    landed = []
    for uid in range(3):
        for j in range(view.dispatch.params["n"]):
            block, lengths, _, numbers = stream.sample((uid, 50 + uid, j), 0)
            landed.append(Landed(50 + uid, pool.put(block), lengths, numbers))
    return Case(Here(view, interpreter, pool), landed)


@pytest.mark.parametrize(("dp", "mini_batches"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_every_row_is_trained_once_with_its_own_advantage_and_log_probs(pool: ShmPool, dp: int, mini_batches: int) -> None:
    this = case(pool, dp=dp, mini_batches=mini_batches)
    this.run()
    assert len(this.given) == dp
    rows = [row for objective in this.given for mini in objective.parts for micro in mini for row in _rows(micro)]
    real = sorted(row for row in rows if row[0] >= 0)
    # GRPO of leaf 0 right, leaf 1 wrong in every group; log-probs are the uid; trajectory j has j + 1 (+ 1) sampled tokens
    assert [uid for uid, *_ in real] == [50] * 4 + [51] * 4 + [52] * 4
    assert {(uid, tokens) for uid, tokens, _, _ in real} == {(50 + u, tokens) for u in range(3) for tokens in (1, 2, 3)}
    assert all(old == uid for uid, _, old, _ in real)
    assert sum(advantage > 0 for *_, advantage in real) == 6
    assert len(rows) % (dp * mini_batches) == 0


def _rows(micro: Any) -> list[tuple[int, int, float, float]]:
    """(uid, trained tokens, old log-prob, advantage) of each row."""
    last = micro.response_mask.long().cumsum(-1).argmax(-1)
    return [
        (int(micro.uid[i]), int(micro.response_mask[i].sum()), float(micro.old_log_probs[i, t]), float(micro.advantages[i, t]))
        for i, t in enumerate(last.tolist())
    ]


def test_mini_batches_hold_different_rows(pool: ShmPool) -> None:
    this = case(pool, mini_batches=3)
    this.run()
    (objective,) = this.given
    uids = [{int(uid) for micro in mini for uid in micro.uid} for mini in objective.parts]
    assert sorted(uid for mini in uids for uid in mini) == [50, 51, 52]  # whole groups, one a mini-batch


def test_each_batch_deals_its_groups_anew(pool: ShmPool) -> None:
    dealt = set()
    for batch in range(8):
        this = case(pool, mini_batches=3)
        this.run(batch)
        dealt.add(tuple(int(mini[0].uid[0]) for mini in this.given[0].parts))
    assert len(dealt) > 1


def test_an_operator_of_single_rows_is_split_over_the_ranks_and_one_of_groups_is_not(pool: ShmPool) -> None:
    this = case(pool, dp=2)
    this.run()
    by_name = {name: [rank for n, rank, _ in this.here.calls if n == name] for name, _, _ in this.here.calls}
    assert by_name["actor.log_probs"] == [0, 1]
    assert by_name["grpo"] == [0]
    assert by_name["judge"] == [0]


def test_no_operator_runs_before_what_it_reads_is_made(pool: ShmPool) -> None:
    this = case(pool)
    this.run()
    order = [name for name, _, _ in this.here.calls]
    assert order.index("judge") < order.index("shape_rewards") < order.index("grpo") < order.index("actor.train")
    assert order[-1] == "actor.train"


@pytest.mark.parametrize("dp", [1, 2])
def test_a_block_is_freed_when_the_last_of_its_readers_has_returned(pool: ShmPool, dp: int) -> None:
    this = case(pool, dp=dp)
    this.run()
    assert pool.stats().keys == len(this.landed)  # the rows are freed by those who hold them
    assert len(this.here.freed) == 3 + dp  # scores, shaped scores, advantages, old log-probs of each rank
    reading = {node.name: {this.here.view.graph.nodes[w].name for w in this.here.view.writers(node)} for node in this.here.view.batch}
    for made, at in this.here.freed:
        called = [name for name, _, _ in this.here.calls]
        assert all(called.index(name) < at for name, read in reading.items() if made in read)
    assert [made for made, _ in this.here.freed][-1] in ("grpo", "actor.log_probs")  # what training reads
    pool.release([t.key for t in this.landed])
    assert pool.stats().bytes == 0


def test_metrics_are_named_by_operator(pool: ShmPool) -> None:
    result = case(pool).run()
    assert result.metrics["actor.train/loss"] == 0.25
    assert result.metrics["judge/is_correct"] == 0.5
    assert result.seconds.keys() >= {"judge", "actor.train"}


def test_measures_of_a_split_operator_are_of_all_ranks(pool: ShmPool) -> None:
    one, two = (case(pool, dp=dp).run().metrics["actor.log_probs/old"] for dp in (1, 2))
    assert two == pytest.approx(one)


def test_groups_that_an_operator_raises_for_are_named_and_nothing_of_the_batch_stays_in_the_pool(pool: ShmPool) -> None:
    this = case(pool)
    this.here.broken, this.here.poison = "judge", "two"
    with pytest.raises(GroupsFailed) as caught:
        this.run()
    assert caught.value.why == {51: "`judge` on `host` raised ValueError: no"}
    assert pool.stats().keys == len(this.landed)
    assert "actor.train" not in [name for name, _, _ in this.here.calls]


@pytest.mark.parametrize("calls", [0, 2], ids=["before it raised", "while it was asked group by group"])
def test_an_operator_that_raises_after_a_train_step_is_the_end(pool: ShmPool, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To run the batch once more without the group would repeat the step. The train step of another worker begins after so many calls."""
    this = case(pool)
    this.here.broken, this.here.poison = "judge", "two"
    scope, call, asked = this.scope(), this.here.call, list[str]()

    async def meanwhile(node: Node, rank: int, told: Call, timeout: float) -> Done:
        asked.append(node.name)
        scope._has_moved = asked.count("judge") >= calls
        return await call(node, rank, told, timeout)

    monkeypatch.setattr(this.here, "call", meanwhile)
    with pytest.raises(OperatorError, match=r"`judge` .* no \(a train step of this batch had begun: no group can be taken out"):
        asyncio.run(scope.run())
    assert asked.count("judge") == (4 if calls else 1)
    assert pool.stats().keys == len(this.landed)


def test_a_train_step_that_is_asked_for_has_begun(pool: ShmPool) -> None:
    scope = case(pool).scope()
    assert not scope._has_moved
    asyncio.run(scope.run())
    assert scope._has_moved


def test_an_operator_that_raises_once_costs_no_group(pool: ShmPool) -> None:
    this, whole = case(pool), case(pool)
    this.here.broken, this.here.times = "judge", 1
    assert this.run().metrics == pytest.approx(whole.run().metrics)
    assert pool.stats().keys == 2 * len(this.landed)


def test_the_first_error_ends_the_batch(pool: ShmPool) -> None:
    this = case(pool)
    this.here.broken = "judge"
    with pytest.raises(OperatorError, match="`judge` on `host` raised ValueError: no"):
        this.run()
    assert "actor.train" not in [name for name, _, _ in this.here.calls]


def test_what_was_right_is_told_by_prompt_and_pad_rows_are_of_none(pool: ShmPool) -> None:
    """Two trajectories of two leaves each, leaf 0 is right; dp=5 pads 12 rows to 15."""
    assert case(pool, dp=5).run().judged == {50: (4, 2), 51: (4, 2), 52: (4, 2)}
