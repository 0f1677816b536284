"""Devices and ranks: what a pipeline notes of them, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from vocabulary import Torch

from rlflow import CheckFailed, Devices, Plan, Worker, pipeline
from rlflow.modules import make_worker


class Model(Worker): ...


@pipeline
def placed(count: Any = 8, tp: Any = 1) -> None:
    gpus = Devices("gpus", count=count)
    Model("actor", dp=2, tp=tp, cp=2, on=gpus)
    Model("alone")


def refused(*arguments: Any, **keywords: Any) -> list[str]:
    with pytest.raises(CheckFailed) as found:
        placed(*arguments, **keywords)
    return [f"{d.code} {d.message}" for d in found.value.diagnostics if d.severity == "error"]


def test_the_ranks_of_a_worker_are_the_product_of_its_axes() -> None:
    assert Torch("actor", dp=2, tp=3, pp=5, cp=7).world_size == 210
    assert Torch("actor", dp=4).world_size == 4


def test_a_plan_says_which_devices_a_worker_is_on_and_loads_back_equal() -> None:
    plan = placed(tp=2)
    actor, alone = plan.graph.workers
    assert [(d.name, d.count) for d in plan.graph.devices] == [("gpus", 8)]
    assert (actor.devices, actor.dp_size, actor.world_size) == (0, 2, 8)
    assert (alone.devices, alone.world_size) == (None, 1)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_twin_of_a_worker_is_on_devices_of_that_name() -> None:
    twin = make_worker(Plan.from_json(placed().to_json()).graph.workers[0])
    assert twin.on is not None
    assert (twin.on.name, twin.on.count) == ("gpus", 8)


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_devices_are_counted(count: Any) -> None:
    assert refused(count) == [f"RLF015 `count` of `Devices` is an integer of at least 1, got {count!r}"]


def test_tensor_parallel_ranks_are_counted() -> None:
    assert refused(tp=0) == ["RLF015 `tp` of `Model` is an integer of at least 1, got 0"]


def test_devices_made_outside_of_the_pipeline_enter_where_they_are_named() -> None:
    shared = Devices("gpus", count=4)

    @pipeline
    def loop() -> None:
        Model("one", dp=4, on=shared)
        Model("two", dp=4, on=shared)

    plan = loop()
    assert [(d.name, d.count) for d in plan.graph.devices] == [("gpus", 4)]
    assert [worker.devices for worker in plan.graph.workers] == [0, 0]


def test_two_device_groups_of_one_name_are_refused() -> None:
    @pipeline
    def loop() -> None:
        Devices("gpus", count=4)
        Devices("gpus", count=4)

    with pytest.raises(CheckFailed, match="two device groups are named `gpus`"):
        loop()
