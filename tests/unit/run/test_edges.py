"""The edges of a plan are what the run ships: walked by the run's own functions, and counted in bytes of a real block."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from small_loop import interpreter_of, small
from test_graph import filtered

from pipelines.grpo import grpo
from pipelines.multiturn import multiturn
from pipelines.parts import Options
from pipelines.ppo import ppo
from rlflow import Plan
from rlflow.compile import messages
from rlflow.compile.bytes import row_bytes
from rlflow.compile.ir import Dim
from rlflow.data.batch import Block
from rlflow.data.column import Column
from rlflow.data.pool.protocol import Key
from rlflow.run.graph import GraphView
from rlflow.run.interpret import fetch
from rlflow.run.messages import Call, Done, Source
from rlflow.run.stream import Stream

KEY = Key(lane=0, offset=0, nbytes=0, rows=1, serial=1)


class OneBlock:
    """A pool with one block, of the columns that a producer puts there."""

    def __init__(self, view: GraphView, writer: int) -> None:
        on_stream = {node.id for node in view.stream}
        put = view.crossing if writer in on_stream else {i for i in view.graph.nodes[writer].outs if i in view.facts.read}
        self.block = Block({str(i): Column.scalars("i64", [0]) for i in put})

    def view(self, key: Key) -> Block:
        return self.block


def shipped(view: GraphView) -> dict[tuple[str, str], set[int]]:
    """Fields that `fetch` takes out of the pool for each call, by process of the writer and of the reader."""
    found: dict[tuple[str, str], set[int]] = {}
    for node in (*view.hops, *view.batch):
        for writer in view.writers(node):
            pool = OneBlock(view, writer)
            for field in fetch(view, node, Source(writer, (KEY,)), pool):  # type: ignore[arg-type]
                origin = view.graph.origin(field)
                pair = view.facts.site[origin.node], view.facts.site[node.id]
                found.setdefault(pair, set()).add(origin.id)
    return found


PLANS = {
    "grpo": grpo(),
    "grpo, all options": grpo(kl=0.1, max_lag=1, dp=2, mini_batches=2),
    "ppo": ppo(Options(prompts=256, group_size=1, dp=2)),
    "multiturn": multiturn(),
    "filtered": filtered(),
    "small": small(),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_what_is_fetched_by_key_is_what_the_edges_say(plan: Plan) -> None:
    view = GraphView(plan)
    said: dict[tuple[str, str], set[int]] = {}
    for edge in plan.facts.edges:
        if edge.keyed:
            said.setdefault((edge.sender, edge.receiver.removesuffix(" (other ranks)")), set()).update(edge.keyed)
    fetched = shipped(view)
    assert {pair: fields for pair, fields in fetched.items() if pair[0] != pair[1]} == {p: f for p, f in said.items() if p[0] != p[1]}
    assert all(fields <= fetched[pair] for pair, fields in said.items() if pair[0] == pair[1])  # from rank to rank


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_what_a_trajectory_puts_into_the_pool_is_what_leaves_its_process(plan: Plan) -> None:
    engine = f"{GraphView(plan).engine.name}.rollout"
    assert GraphView(plan).crossing == {field for edge in plan.facts.edges if edge.sender == engine for field in edge.keyed}


def test_bytes_a_row_are_those_of_a_real_block() -> None:
    plan = small()
    view, interpreter = interpreter_of(plan)
    block, lengths, _, _ = Stream(view, interpreter).sample((2, 7, 1), 0)
    assert len(lengths) == 2
    text = {i for i in view.crossing if view.graph.fields[i].declared is not None and view.graph.fields[i].declared.dtype == "text"}
    sizes = [size for i in view.crossing - text if (size := row_bytes(plan.facts.specs[i])) is not None]
    planned = sum(size.put({"S": Dim.of(n)}).number or 0 for size in sizes for n in lengths)
    assert sum(block[str(i)].values.nbytes for i in view.crossing - text) == planned
    assert np.all(np.array(lengths) > 2)


def wire(message: object) -> int:
    """Bytes of a frame."""
    return 4 + len(msgspec.msgpack.encode(message))


@pytest.mark.parametrize(
    ("planned", "real"),
    [
        (messages.CALL, wire(Call(300, 8, 120))),
        (
            messages.TRAJECTORY,
            wire(Call(300, 8, 120, prompt=(1500, 3000, 3), engine=1, address="http://127.0.0.1:40123")) - wire(Call(300, 8, 120)),
        ),
        (messages.DONE, wire(Done(300))),
        (messages.SPAN, wire(Done(300, spans=((120, 0, 200),))) - wire(Done(300))),
        (messages.KEY, len(msgspec.msgpack.encode(Key(3, 3_000_000, 30_000, 8, 70_000)))),
        (messages.INT, len(msgspec.msgpack.encode(1000))),
        (messages.NUMBER + len("grpo/advantages"), len(msgspec.msgpack.encode({"grpo/advantages": 1.5}))),
    ],
)
def test_sizes_of_messages_are_those_of_the_wire(planned: int, real: int) -> None:
    assert abs(planned - real) <= 2
