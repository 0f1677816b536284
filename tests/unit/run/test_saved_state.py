"""A checkpoint holds exactly what is declared: what a worker writes is compared with what its class says."""

from __future__ import annotations

import msgspec
import pytest
from small_loop import small

from pipelines.grpo import grpo
from pipelines.ppo import ppo
from rlflow.compile.ir import Dim, State
from rlflow.errors import EngineError, UsageError
from rlflow.run.graph import GraphView
from rlflow.run.worker import refuse_other_checkpoint


def test_what_is_declared_and_nothing_else_is_written() -> None:
    refuse_other_checkpoint("actor", ("weights", "steps"), {"steps", "weights"})
    with pytest.raises(EngineError, match="the checkpoint of `actor` did not write rng, which it declares"):
        refuse_other_checkpoint("actor", ("weights",), {"weights", "rng"})
    with pytest.raises(EngineError, match="wrote ema, which it does not declare and did not write rng, which it declares"):
        refuse_other_checkpoint("actor", ("weights", "ema"), {"weights", "rng"})


def test_a_worker_that_trains_saves_its_state_and_a_frozen_one_nothing() -> None:
    view = GraphView(grpo(kl=0.1))
    assert view.saved("actor") == {"weights", "optimizer", "rng", "steps", "version"}
    assert view.saved("reference") == view.saved("engine") == frozenset()
    assert GraphView(ppo()).saved("critic") == view.saved("actor")


def test_an_operator_cannot_ask_for_a_place_in_the_checkpoint() -> None:
    plan = small()
    view = GraphView(plan)
    view.check_runnable()
    judge = next(node for node in view.needed if node.name == "judge")
    kept = State(name="seen", bytes=Dim.of(8), in_checkpoint=True, trained=False)
    view.needed[view.needed.index(judge)] = msgspec.structs.replace(judge, state=(kept,))
    with pytest.raises(UsageError, match="`judge` declares `seen` as part of the checkpoint, and a run saves what workers keep"):
        view.check_runnable()
