"""W, C: what a resumed run does first, and where in the data it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decide_world import World
from ring_cases import ONE, sent
from ring_end import drive_to_the_end
from ring_world import Ring

from rlflow.run.controller import events as ev
from rlflow.run.controller.ids import SyncId
from rlflow.run.controller.schedule import Config, Hop, Origin

EIGHT = Config(n=1, groups_per_batch=2, max_lag=1, last=9, prompts=8, save_every=2, engines=("e",), hops=(Hop("reward"),))


def first_sends(ring: Ring, count: int = 10_000) -> list[str]:
    """What is dispatched until the first engine of a run that was just started serves: at most ``count`` of it."""
    while not ring.running() and ring.finish is None:
        ring.answer(ring.outstanding()[-1], 1000)
    return [str(trajectory) for trajectory in ring.running()][:count]


def answer(ring: Ring, steps: int) -> None:
    """Everything succeeds, in a fixed order that lets syncs and saves overtake landings now and then."""
    for step in range(steps):
        if ring.finish is None:
            waits = ring.outstanding()
            ring.answer(waits[step * 7 % len(waits)], 4)


def trained(ring: Ring) -> list[int]:
    return sorted(uid for uids in ring.accounts.trained_in.values() for uid in uids)


# --- V1: the bound of a resumed run
def test_V1_a_run_that_is_resumed_at_version_100_sends_24_groups_not_824() -> None:
    config = Config(n=1, groups_per_batch=8, max_lag=2, last=999, save_every=1, engines=("e",))
    ring = Ring(config, Origin(version=99))
    while ring.accounts.checkpoint < 100:
        waits = ring.outstanding()
        ring.answer(ring.running()[0] if ring.running() and ring.training is None and not ring.saves else waits[-1], 1000)
    ring.kill(config)
    assert ring.accounts.published == 100
    assert len(first_sends(ring)) == 24


# --- W6: neither side waits for the other
def test_W6_the_first_edge_of_a_run_at_version_7_is_a_sync() -> None:
    world = World(ONE, Origin(version=7))
    world.feed(ev.RunStarted())
    world.engine_up("e")
    assert [action for action in world.come_up() if not isinstance(action, ev.Arm | ev.Disarm)] == [ev.Sync(SyncId(0, 7, "e", 1))]
    assert sent(world.sync("e")) == ["0.0.0"]


def test_W6_every_engine_is_synced_before_it_is_sent_anything() -> None:
    world = World(replace(ONE, groups_per_batch=2, engines=("e", "f")), Origin(version=7))
    world.feed(ev.RunStarted())
    world.come_up()
    world.engine_up("e", 1)
    assert sent(world.engine_up("f", 1)) == []
    assert sent(world.sync("f")) == ["0.0.0"]
    assert sent(world.sync("e")) == ["1.0.0"]


@pytest.mark.parametrize("engine_first", [True, False])
def test_W6_a_resume_at_version_2_begins_with_the_sync_of_version_2(engine_first: bool) -> None:
    ring = Ring(EIGHT)
    while ring.accounts.checkpoint < 2:
        answer(ring, 1)
    ring.kill(EIGHT)
    steps = [lambda: ring.engine_up("e", 4), ring.come_up]
    for step in steps if engine_first else steps[::-1]:
        assert ring.syncs == {}
        step()
    assert [(sync.timeline, sync.version) for sync in ring.syncs.values()] == [(1, 2)]


# --- C1, C3, C6: no prompt is skipped, none is trained twice, wherever the run dies
LENGTH = 60


@pytest.mark.parametrize("tick", range(LENGTH))
def test_C1_of_8_prompts_a_run_killed_at_any_tick_trains_each_once(tick: int) -> None:
    ring = Ring(EIGHT)
    answer(ring, tick)
    ring.kill(EIGHT)
    drive_to_the_end(ring)
    assert trained(ring) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("second", range(0, LENGTH, 5))
def test_C1_nor_does_a_second_kill_lose_or_double_one(second: int) -> None:
    for first in range(0, LENGTH, 4):
        ring = Ring(EIGHT)
        answer(ring, first)
        ring.kill(replace(EIGHT, groups_per_batch=3, max_lag=2))
        answer(ring, second)
        ring.kill(EIGHT)
        drive_to_the_end(ring)
        assert trained(ring) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_C1_the_walk_over_ticks_reaches_the_end_of_the_run() -> None:
    ring = Ring(EIGHT)
    answer(ring, LENGTH)
    assert ring.finish is not None
    assert ring.accounts.checkpoint == 4


def test_C3_prompts_that_were_drawn_ahead_of_the_trained_ones_are_sent_again() -> None:
    """Eight are drawn at version 0, two are trained and saved: the other six are sampled anew, and no ninth prompt before them."""
    config = replace(EIGHT, max_lag=3, save_every=1, hops=(), prompts=0)
    ring = Ring(config)
    assert first_sends(ring) == [f"{uid}.0.0" for uid in range(8)]
    ring.land(ring.running()[0])
    ring.land(ring.running()[0])
    ring.train()
    ring.save(next(iter(ring.saves)))
    assert trained(ring) == [0, 1]
    ring.kill(config)
    assert first_sends(ring, 7) == [f"{uid}.0.1" for uid in range(2, 8)] + ["8.0.1"]


def test_C6_what_was_trained_after_the_checkpoint_is_trained_again_before_anything_new() -> None:
    """No checkpoint at all: 0 and 1, sampled by the weights of the start, from their rows; 2 and 3, whose weights are lost, anew."""
    config = replace(EIGHT, max_lag=0, save_every=0, hops=())
    ring = Ring(config)
    for expected in (["0.0.0", "1.0.0"], ["2.0.0", "3.0.0"]):
        assert first_sends(ring) == expected
        ring.land(ring.running()[0])
        ring.land(ring.running()[0])
        ring.train()
        ring.sync("e")
    assert trained(ring) == [0, 1, 2, 3]
    ring.kill(config)
    assert first_sends(ring) == ["2.0.1", "3.0.1"]
    assert trained(ring) == [0, 1]
    drive_to_the_end(ring)
    assert trained(ring) == [0, 1, 2, 3, 4, 5, 6, 7]


# --- Q9: a rollback waits for nothing that the old timeline waits for
def test_Q9_a_rollback_comes_through_while_all_is_waited_for() -> None:
    """A landing, a score, a train step, a save and a sync are under way when the trainer dies: all are void, by their timelines."""
    ring = Ring(replace(EIGHT, max_lag=3, save_every=1, prompts=0))
    first_sends(ring)
    for batch in (0, 1):
        for _ in range(2):
            ring.land(ring.running()[0])
            ring.ran(*next(iter(ring.runs)))
        if batch == 0:
            ring.train()
    ring.land(ring.running()[0])
    assert ring.training is not None
    assert [len(ring.saves), len(ring.syncs), len(ring.runs), len(ring.running())] == [1, 1, 1, 3]
    ring.workers_die()
    assert (ring.accounts.timeline, ring.accounts.published) == (1, 0)
    assert ring.outstanding() == ["workers"]
    drive_to_the_end(ring)
