"""The watermark moves by what the trainer and the ready buffer say, and siblings go where their prefix is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decide_world import World

from rlflow.run.controller.routing import Routing
from rlflow.run.controller.schedule import Config
from rlflow.run.controller.state import Engine
from rlflow.run.controller.watermark import Watermark

PILED = "a batch is ready beyond what the queue takes"
CONFIG = Config(n=1, groups_per_batch=1, max_lag=3, last=99, engines=("e",))


def told(watermark: Watermark, *steps: str) -> list[int]:
    """Its values after steps in which the trainer `waits`, a batch is `ready` too early, `both`, or neither (`-`)."""
    values = []
    for step in steps:
        watermark.starved = step in ("waits", "both")
        watermark.piled = PILED if step in ("ready", "both") else ""
        watermark.end_of_step()
        values.append(watermark.value)
    return values


def test_six_steps_in_a_row_that_ask_for_less_lower_it_by_one_step() -> None:
    watermark = Watermark(16, 2, 16, 2)
    assert told(watermark, *["ready"] * 12) == [16] * 5 + [14] * 6 + [12]
    assert (watermark.lowered, watermark.raised) == (2, 0)
    assert watermark.reason == "14 to 12: a batch is ready beyond what the queue takes"


def test_a_step_in_which_the_trainer_waited_raises_it() -> None:
    watermark = Watermark(4, 2, 16, 2)
    assert told(watermark, "waits", "waits") == [6, 8]
    assert watermark.reason == "6 to 8: the trainer waited for a batch while engines had room"


@pytest.mark.parametrize("between", ["-", "both"])
def test_what_changes_its_mind_lowers_nothing(between: str) -> None:
    assert told(Watermark(8, 2, 16, 2), *["ready"] * 5, between, *["ready"] * 5) == [8] * 11


def test_after_it_was_raised_six_steps_are_asked_for_again() -> None:
    assert told(Watermark(8, 2, 16, 2), *["ready"] * 5, "waits", *["ready"] * 6) == [8] * 5 + [10] * 6 + [8]


def test_it_stays_within_its_bounds() -> None:
    assert told(Watermark(3, 2, 16, 2), *["ready"] * 12)[5:] == [2] * 7
    assert told(Watermark(15, 2, 16, 2), "waits", "waits") == [16, 16]


def test_at_a_bound_nothing_is_counted() -> None:
    watermark = Watermark(16, 2, 16, 2)
    told(watermark, "waits", "waits")
    assert (watermark.raised, watermark.reason) == (0, "")


def test_a_fixed_one_never_moves() -> None:
    assert told(Watermark(8, 2, 16, 2, fixed=True), "waits", *["ready"] * 6) == [8] * 7


def test_it_begins_at_all_that_admission_lets_in_and_a_given_one_is_fixed() -> None:
    free, given = World(CONFIG).state.watermark, World(replace(CONFIG, watermark=2)).state.watermark
    assert (free.value, free.lowest, free.highest, free.fixed) == (4, 1, 4, False)
    assert (given.value, given.fixed) == (2, True)


def step(world: World) -> None:
    world.train()
    world.sync("e")


def test_a_trainer_that_is_slower_lowers_it_and_fewer_are_sent() -> None:
    """P = n = 1, L = 3: the next batch is ready all the time."""
    world = World(CONFIG)
    world.begin()
    for _ in range(12):
        for trajectory in world.running():
            world.land(trajectory)
        step(world)
    assert world.state.watermark.value == 2
    assert world.state.watermark.reason == f"3 to 2: {PILED}"
    assert world.state.watermark.lowered == 2


def test_a_trainer_that_waits_raises_it_again() -> None:
    world = World(CONFIG)
    world.begin()
    world.state.watermark.value = 1
    for _ in range(4):
        while world.training is None:
            world.land(world.running()[0])
        step(world)
    assert world.state.watermark.value > 1
    assert world.state.watermark.reason.endswith("the trainer waited for a batch while engines had room")


def test_an_old_group_that_is_waited_for_lowers_it() -> None:
    """P = 1, L = 1: uid 1 is due in batch 1 and slow; 2 is ready and may not board."""
    world = World(replace(CONFIG, max_lag=1))
    world.begin()
    world.land(world.running()[0])
    step(world)
    world.land(world.running()[1])
    assert world.training is None
    assert world.state.watermark.piled == "a batch is ready, but older groups would be pushed over max_lag"


# --- routing --------------------------------------------------------------------------------------------------------------------------


def fleet(*room: int) -> tuple[Routing, list[Engine]]:
    engines = [Engine(f"e{i}", i, state="serving", capacity=capacity) for i, capacity in enumerate(room)]
    routing = Routing()
    for engine in engines:
        routing.offer(engine)
    return routing, engines


def test_the_engine_with_the_most_room_is_best() -> None:
    routing, engines = fleet(2, 5, 3)
    assert routing.best(engines) is engines[1]


def test_a_sibling_goes_where_its_prefix_is_while_there_is_room() -> None:
    routing, engines = fleet(2, 5, 3)
    assert routing.best(engines, near=engines[0]) is engines[0]
    engines[0].capacity = 0
    assert routing.best(engines, near=engines[0]) is engines[1]


def test_an_engine_that_serves_an_older_version_gets_no_sibling() -> None:
    routing, engines = fleet(2, 5)
    engines[1].state = "stale"
    assert routing.best(engines, near=engines[1]) is engines[0]


def engines_of(world: World) -> dict[str, list[str]]:
    return {name: [str(t) for t in sorted(host.running)] for name, host in world.hosts.items()}


def test_a_new_group_goes_to_the_emptier_engine_and_its_sibling_after_it() -> None:
    """n = 2, W = 2, room for 4 each: group 0 is on a, so group 1 begins on b; when a is empty its second trajectory goes to b too."""
    world = World(replace(CONFIG, n=2, groups_per_batch=2, max_lag=0, watermark=2, engines=("a", "b")))
    world.begin(capacity=4)
    assert engines_of(world) == {"a": ["0.0.0", "0.1.0"], "b": []}
    world.land(world.running()[0])
    world.land(world.running()[0])
    assert engines_of(world) == {"a": [], "b": ["1.0.0", "1.1.0"]}


def test_a_group_is_split_rather_than_kept_waiting() -> None:
    """n = 3, room for 2 on each engine."""
    world = World(replace(CONFIG, n=3, max_lag=0, engines=("a", "b")))
    world.begin(capacity=2)
    assert engines_of(world) == {"a": ["0.0.0", "0.1.0"], "b": ["0.2.0"]}
