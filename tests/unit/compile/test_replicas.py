"""Replicas of a rollout engine: one worker of the graph, several of everything that it is made of."""

from __future__ import annotations

import pytest
from start import Start
from vocabulary import KlTrainRows, Torch

from pipelines.grpo import grpo
from rlflow import CheckFailed, Devices, Plan, pipeline
from rlflow.errors import UsageError
from rlflow.run.calls import engine_names
from rlflow.run.graph import GraphView
from rlflow.run.record import Options
from rlflow.run.session import schedule


def test_a_run_has_an_engine_a_replica() -> None:
    one, three = GraphView(grpo()), GraphView(grpo(engines=3))
    assert engine_names(one.engine) == schedule(one, Options()).engines == ("engine",)
    assert engine_names(three.engine) == schedule(three, Options()).engines == ("engine.0", "engine.1", "engine.2")


def test_new_weights_go_to_every_replica() -> None:
    def sent(plan: Plan) -> str:
        return next(str(e.step_bytes) for e in plan.facts.edges if (e.sender, e.receiver) == ("actor", "engine"))

    assert (sent(grpo()), sent(grpo(engines=2))) == ("4*N_actor", "8*N_actor")


def _with_reference(reference: Torch) -> None:
    s = Start()
    ref = reference.log_probs(reference.load(), s.ready.input_ids, s.ready.response_mask)
    s.finish(KlTrainRows(**vars(s.rows()), ref_log_probs=ref))


@pipeline
def spread(replicas: int, count: int) -> None:
    _with_reference(Torch("reference", tp=2, replicas=replicas, on=Devices("gpus", count=count)))


def test_devices_are_counted_for_every_replica() -> None:
    plan = spread(replicas=4, count=8)
    worker = next(w for w in plan.graph.workers if w.name == "reference")
    assert worker.world_size == 8
    assert plan.facts.ranks[worker.id] == (0, 1, 2, 3, 4, 5, 6, 7)


def test_replicas_that_do_not_divide_their_devices_are_refused_with_those_that_do() -> None:
    with pytest.raises(CheckFailed) as failed:
        spread(replicas=3, count=8)
    assert "error[RLF401]: 6 ranks of `reference` do not divide the 8 devices of `gpus`" in str(failed.value)
    assert "tp=2 × replicas=3, 6 ranks" in str(failed.value)
    assert "= help: `replicas=2` or `replicas=4`" in str(failed.value)


def test_no_replicas_are_no_engine() -> None:
    with pytest.raises(CheckFailed, match="`replicas` of `Embedded` is an integer of at least 1, got 0"):
        grpo(engines=0)


@pipeline
def doubled() -> None:
    _with_reference(Torch("reference", replicas=2))


def test_a_run_refuses_replicas_of_what_does_not_sample() -> None:
    view = GraphView(doubled())
    with pytest.raises(UsageError, match="worker `reference` asks for replicas=2, and only what samples has replicas: use dp=2"):
        view._check_workers()
