"""P9 on the core: random schedules of landings, failures, drops, syncs, deaths, timeouts and stops; the world checks every transition.

Invariants 1-6 of the state machine, and that every run comes to its end from wherever it is.
"""

from __future__ import annotations

import random

import pytest
from decide_world import World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rlflow.run.controller import events as ev
from rlflow.run.controller.decide import decide
from rlflow.run.controller.state import Config, Hop, Origin

HOPS = ((), (Hop("reward"),), (Hop("reward"), Hop("shape"), Hop("filter", per="group")), (Hop("filter", per="group"),))
ORIGINS = (Origin(), Origin(), Origin(timeline=2**31 - 2, version=2**31 - 2, uid=2**31 - 2, attempt=2**31 - 2),
           Origin(timeline=2**53 - 2, version=2**53 - 2, uid=2**53 - 2, attempt=2**53 - 2))  # fmt: skip


def random_config(rng: random.Random, origin: Origin) -> Config:
    n, groups, max_lag, oversample = rng.randint(1, 3), rng.randint(1, 3), rng.randint(0, 3), rng.choice((0, 0, 0, 1, 2))
    highest = n * ((max_lag + 1) * groups + oversample)
    return Config(
        n=n,
        groups_per_batch=groups,
        max_lag=max_lag,
        oversample=oversample,
        policy=rng.choice(("wait", "wait", "drop", "mask", "correct")),
        watermark=rng.choice((0, n, rng.randint(n, highest))),
        last=origin.version + rng.randint(0, 5),
        queue=rng.randint(0, 2),
        prompts=rng.choice((0, 0, origin.uid + rng.randint(1, 14))),
        remainder=rng.choice(("short", "drop")),
        hops=rng.choice(HOPS),
        eval_every=rng.randint(0, 3),
        save_every=rng.randint(0, 2),
        engines=tuple(f"engine{i}" for i in range(rng.randint(1, 3))),
        engine_restarts=rng.choice((0, 1, 6)),
        trainer_restarts=rng.choice((0, 2, 9)),
        max_attempts=rng.randint(1, 3),
    )


class Schedules(RuleBasedStateMachine):
    world: World

    @initialize(seed=st.integers(0, 2**32), origin=st.sampled_from(ORIGINS))
    def begin(self, seed: int, origin: Origin) -> None:
        self.rng = random.Random(seed)
        self.world = World(random_config(self.rng, origin), origin)
        self.world.takes_turns = self.rng.random() < 0.5
        self.world.feed(ev.RunStarted())

    def is_live(self) -> bool:
        return self.world.finish is None

    @precondition(is_live)
    @rule(data=st.data())
    def one_answer(self, data: st.DataObject) -> None:
        self.world.answer(data.draw(st.sampled_from(self.world.outstanding()), "answer"), self.rng)

    @precondition(is_live)
    @rule(seed=st.integers(0, 2**16), count=st.integers(2, 30))
    def many_answers(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        for _ in range(count):
            if self.world.finish is None:
                self.world.answer(rng.choice(self.world.outstanding()), rng)

    @precondition(is_live)
    @rule(data=st.data())
    def one_failure(self, data: st.DataObject) -> None:
        self.world.refuse(data.draw(st.sampled_from(self.world.outstanding()), "refuse"))

    @precondition(lambda self: self.is_live() and self.world.timers)
    @rule(data=st.data())
    def timer_runs_out(self, data: st.DataObject) -> None:
        self.world.run_out(data.draw(st.sampled_from(sorted(self.world.timers)), "timer"))

    @precondition(lambda self: self.is_live() and any(host.up for host in self.world.hosts.values()))
    @rule(data=st.data())
    def engine_dies(self, data: st.DataObject) -> None:
        self.world.engine_down(data.draw(st.sampled_from([name for name, host in self.world.hosts.items() if host.up]), "engine"))

    @precondition(lambda self: self.is_live() and any(host.up for host in self.world.hosts.values()))
    @rule(data=st.data(), capacity=st.integers(0, 6))
    def capacity_changes(self, data: st.DataObject, capacity: int) -> None:
        name = data.draw(st.sampled_from([name for name, host in self.world.hosts.items() if host.up]), "engine")
        self.world.hosts[name].capacity = max(capacity, 1)
        self.world.feed(ev.Free(name, max(capacity, 1)))

    @precondition(lambda self: self.is_live() and any(is_answer(event) for event in self.world.history))
    @rule(data=st.data())
    def old_event_comes_again(self, data: st.DataObject) -> None:
        self.world.replay(data.draw(st.sampled_from([event for event in self.world.history if is_answer(event)]), "old"))

    @precondition(is_live)
    @rule()
    def source_ends(self) -> None:
        self.world.end_source()

    @precondition(is_live)
    @rule()
    def stop(self) -> None:
        self.world.stop()

    @precondition(lambda self: not self.is_live())
    @rule(data=st.data())
    def nothing_follows_the_end(self, data: st.DataObject) -> None:
        assert decide(self.world.state, data.draw(st.sampled_from(self.world.history))) == []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish_fairly(self.rng)


def is_answer(event: ev.AnyEvent) -> bool:
    """An event that closes something for good: it means nothing when it comes again."""
    return not isinstance(event, ev.Free | ev.SourceEnd | ev.Stop | ev.TrainerDown | ev.Timeout | ev.EngineDown)


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.mark.parametrize("block", range(10))
def test_random_schedules_end_and_break_no_bound(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        rng = random.Random(seed)
        origin = rng.choice(ORIGINS)
        world = World(random_config(rng, origin), origin)
        world.takes_turns = rng.random() < 0.5
        world.feed(ev.RunStarted())
        harm = rng.choice((0.0, 0.02, 0.1, 0.25))
        for _ in range(rng.randint(0, 300)):
            if world.finish is not None:
                break
            step(world, rng, harm)
        world.finish_fairly(rng)


def step(world: World, rng: random.Random, harm: float) -> None:
    """One event; with probability ``harm`` a bad one. Trajectories, the bulk, fail more often than what ends a run."""
    wait = rng.choice(world.outstanding())
    up = [name for name, host in world.hosts.items() if host.up]
    if rng.random() >= harm:
        world.answer(wait, rng)
    elif rng.random() < 0.02:
        rng.choice((world.stop, world.end_source))()
    elif rng.random() < 0.1:
        world.run_out(rng.choice(sorted(world.timers)))
    elif rng.random() < 0.1 and up:
        world.engine_down(rng.choice(up))
    elif isinstance(wait, ev.Train) and wait.groups and rng.random() < 0.7:
        world.group_failed(rng.choice(wait.groups))
    else:
        world.refuse(wait)


@pytest.mark.parametrize("seed", range(40))
def test_a_run_without_faults_trains_every_batch(seed: int) -> None:
    rng = random.Random(seed)
    config = Config(
        n=rng.randint(1, 3), groups_per_batch=rng.randint(1, 3), max_lag=seed % 4, last=6, queue=rng.randint(0, 2),
        engines=("a", "b")[: rng.randint(1, 2)], eval_every=2, save_every=3, hops=(Hop("reward"),),
    )  # fmt: skip
    world = World(config)
    world.begin(capacity=rng.randint(1, 5))
    world.finish_fairly(rng)
    assert world.finish == ev.Finish("done", "the last batch is trained, at version 7")
    assert world.published == 7
    assert world.trained.total() == 7 * config.groups_per_batch
    assert world.evaluated[0] == 0 or len(config.engines) > 1
    assert sorted(world.saved) == [3, 6, 7]
