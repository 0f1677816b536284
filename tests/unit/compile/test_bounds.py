"""Sizes that only the run knows, and what bounds them: through row operators, and into bytes."""

from __future__ import annotations

import pytest
from start import Start
from vocabulary import (
    B,
    Embedded,
    Leaves,
    Policy,
    S,
    T,
    Torch,
    Trajectories,
    dataset,
    dispatch,
    micro_pack,
    pad,
    ppo_clip,
    shard,
    sync,
)

from rlflow import Feedback, Plan, Served, fresh, operator, pipeline
from rlflow.errors import UsageError


class Forest(Embedded):
    """Trees of at most four leaves."""

    @operator(per="row", sizes={B: fresh(at_most=4 * T), S: fresh()})
    def sample(self, policy: Served[Policy], prompts: Trajectories) -> Leaves: ...  # type: ignore[empty-body]


class Bounded(Start):
    """The usual loop on such trees."""

    def __init__(self, dp: int) -> None:
        self.prompts = 64
        forest = Forest("engine")
        self.actor, self.engine = Torch("actor", dp=dp), forest
        self.policy = Feedback("policy", init=self.actor.load())
        self.sample = forest.sample(self.policy.served, dispatch(dataset("train.parquet"), n=8))


@pipeline
def loop(multiple: int = 6) -> None:
    start = Bounded(dp=2)
    rows = pad(start.rows(), multiple=multiple)
    micro = micro_pack(shard(rows, on=start.actor), max_tokens=4096)
    start.policy.close(sync(start.actor.train(start.policy.move, micro.loss(ppo_clip())), start.engine))


def most(plan: Plan, writer: str) -> tuple[str, str | None]:
    node = next(n for n in plan.graph.nodes if n.name == writer)
    rows = plan.facts.rows_of(node.outs[0])
    assert rows is not None
    return str(rows.size), None if rows.at_most is None else str(rows.at_most)


@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        ("dispatch", ("8*P", None)),
        ("engine.sample", ("B", "32*P")),
        ("form_batch", ("B2", "2048")),  # 64 prompts of 8 trajectories of 4 leaves
        ("pad", ("padded", "2052")),
        ("shard", ("b", "1026")),
        ("micro_pack", ("b2", "1026")),
    ],
)
def test_a_bound_flows_on(writer: str, expected: tuple[str, str | None]) -> None:
    assert most(loop(), writer) == expected


def test_bytes_follow_from_the_bound() -> None:
    """16 bytes a token of 256 tokens of 2048 rows at most: nothing but the lengths is asked for."""
    plan = loop()
    with pytest.raises(UsageError, match=r"depend on Q, S, text: give Q=\.\.\., S=\.\.\., text=\.\.\."):
        plan.peak()
    assert plan.peak(S=256, Q=16, text=8) == plan.peak(S=256, Q=16, text=8, B=2048, B2=2048, padded=2052, b=1026)
    assert plan.peak(S=256, Q=16, text=8)["pool"].bytes > plan.peak(S=256, Q=16, text=8, B=512)["pool"].bytes


def test_a_batch_holds_the_rows_in_flight() -> None:
    """With max_lag=0 all prompts in flight are in the batch."""
    assert loop().peak(S=256, Q=16, text=8, B=512) == loop().peak(S=256, Q=16, text=8, B=512, B2=512)


def test_a_plan_with_bounds_loads_back_equal() -> None:
    plan = loop()
    assert Plan.from_json(plan.to_json()) == plan
