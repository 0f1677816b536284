"""P9: schedules of landings, failures, drops, syncs, deaths, timeouts, stops, rollbacks, kills and resumes, each driven to its end.

`RLFLOW_SCHEDULES=20000 pytest tests/ring` makes more of them, and other ones each time.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from ring_end import drive_to_the_end
from ring_world import Ring, up

from rlflow.run.controller.decide import decide
from rlflow.run.controller.ids import TrajectoryId
from rlflow.run.controller.schedule import Config, Hop, Origin

SCHEDULES = int(os.environ.get("RLFLOW_SCHEDULES", "1000"))
HOPS = ((), (Hop("reward"),), (Hop("filter", per="group"),), (Hop("reward"), Hop("shape"), Hop("filter", per="group")))
STARTS = (0, 0, 2**31 - 2, 2**53 - 2)
COUNTED: Counter[str] = Counter()

Pick = st.integers(0, 2**16)
Spares = st.sampled_from((0, 0, 0, 1, 2))
Seldom = st.integers(0, 1)
"""0, the simplest: it happens."""


def pick(options: Any, number: int) -> Any:
    """Numbers shrink, so do picks: 0 is the first."""
    return options[number % len(options)]


class Schedules(RuleBasedStateMachine):
    ring: Ring

    @initialize(
        n=st.integers(1, 3), groups_per_batch=st.integers(1, 4), max_lag=st.integers(0, 4), oversample=Spares,
        policy=st.sampled_from(("wait", "drop", "wait", "drop", "mask", "correct")), watermark=st.integers(0, 3), queue=st.integers(0, 2),
        batches=st.integers(1, 16), prompts=st.sampled_from((0, 0, 5, 8, 14, 23)), remainder=st.sampled_from(("short", "drop")),
        hops=st.sampled_from(HOPS), eval_every=st.integers(0, 3), save_every=st.integers(0, 3), engines=st.integers(1, 3),
        max_attempts=st.integers(1, 3), start=st.sampled_from(STARTS), covered_at_once=st.integers(1, 4),
        least_left=st.integers(0, 2),
    )  # fmt: skip
    def begin(
        self, n: int, groups_per_batch: int, max_lag: int, oversample: int, policy: Literal["wait", "drop", "mask", "correct"],
        watermark: int, queue: int, batches: int, prompts: int, remainder: Literal["short", "drop"], hops: tuple[Hop, ...],
        eval_every: int, save_every: int, engines: int, max_attempts: int, start: int, covered_at_once: int, least_left: int,
    ) -> None:  # fmt: skip
        highest = n * ((max_lag + 1) * groups_per_batch + oversample)
        config = Config(
            n=n, groups_per_batch=groups_per_batch, max_lag=max_lag, oversample=oversample, policy=policy,
            watermark=min(n * watermark, highest), queue=queue, last=start + batches - 1, prompts=prompts and start + prompts,
            remainder=remainder, hops=hops, eval_every=eval_every, save_every=save_every, engines=names(engines),
            max_attempts=max_attempts, engine_restarts=5, engine_recovery=3, covered_at_once=covered_at_once,
            least_left=min(least_left, n),
        )  # fmt: skip
        self.ring = Ring(config, Origin(timeline=start, version=start, uid=start, attempt=start))

    def is_live(self) -> bool:
        return self.ring.finish is None

    def is_training(self) -> bool:
        return self.is_live() and self.ring.training is not None and len(self.ring.training.groups) > len(self.ring.failed_groups)

    @precondition(is_live)
    @rule(number=Pick, capacity=st.integers(1, 6))
    def one_answer(self, number: int, capacity: int) -> None:
        self.ring.answer(pick(self.ring.outstanding(), number), capacity)

    @precondition(is_live)
    @rule(seed=Pick, count=st.integers(2, 60))
    def many_answers(self, seed: int, count: int) -> None:
        self.go_on(random.Random(seed), count, stragglers=0, harm=0)

    @precondition(is_live)
    @rule(seed=Pick, count=st.integers(2, 60), stragglers=st.integers(0, 4), harm=st.sampled_from((0, 0, 1, 4)))
    def many_answers_but_to_the_oldest(self, seed: int, count: int, stragglers: int, harm: int) -> None:
        self.go_on(random.Random(seed), count, stragglers, harm)

    def go_on(self, rng: random.Random, count: int, stragglers: int, harm: int) -> None:
        """The oldest trajectories land last; some others fail, and some operators: they do not end a run. Some answers come too late."""
        for _ in range(count):
            if self.is_live():
                if self.ring.ghosts and rng.randrange(8) == 0:
                    self.ring.late(rng.getrandbits(16), rng.getrandbits(16))
                waits = self.ring.outstanding()
                wait = pick(waits[min(stragglers, len(waits) - 1) :], rng.getrandbits(16))
                is_bad = isinstance(wait, TrajectoryId | tuple) and rng.randrange(20) < harm
                if isinstance(wait, TrajectoryId) and self.ring.accounts.member(wait).turn < 2 and rng.randrange(4) == 0:
                    self.ring.end_turn(wait)
                    continue
                self.ring.refuse(wait) if is_bad else self.ring.answer(wait, 1 + rng.randrange(6))

    @precondition(is_live)
    @rule(number=Pick, received=st.booleans())
    def one_failure(self, number: int, received: bool) -> None:
        self.ring.refuse(pick(self.ring.outstanding(), number), received=received)

    @precondition(lambda self: self.is_live() and self.ring.running())
    @rule(number=Pick)
    def turn_ends(self, number: int) -> None:
        going = [trajectory for trajectory in self.ring.running() if not self.ring.accounts.member(trajectory).asked]
        if going:
            self.ring.end_turn(pick(going, number))

    @precondition(lambda self: self.is_live() and self.ring.timers)
    @rule(number=Pick)
    def timer_runs_out(self, number: int) -> None:
        self.ring.run_out(pick(sorted(self.ring.timers), number))

    @precondition(lambda self: self.is_live() and up(self.ring))
    @rule(number=Pick)
    def engine_dies(self, number: int) -> None:
        self.ring.engine_down(pick(up(self.ring), number))

    @precondition(lambda self: self.is_live() and up(self.ring))
    @rule(number=Pick, capacity=st.integers(0, 6))
    def capacity_changes(self, number: int, capacity: int) -> None:
        self.ring.change_capacity(pick(up(self.ring), number), capacity)

    @precondition(is_training)
    @rule(number=Pick)
    def group_fails(self, number: int) -> None:
        assert self.ring.training is not None
        self.ring.fail_group(pick([uid for uid in self.ring.training.groups if uid not in self.ring.failed_groups], number))

    @precondition(is_live)
    @rule(chance=Seldom)
    def workers_die(self, chance: int) -> None:
        if not chance:
            self.ring.workers_die()

    @precondition(lambda self: self.is_live() and self.ring.ghosts)
    @rule(kind=Pick, number=Pick)
    def late_answer(self, kind: int, number: int) -> None:
        self.ring.late(kind, number)

    @precondition(is_live)
    @rule(chance=Seldom)
    def source_ends(self, chance: int) -> None:
        if not chance:
            self.ring.end_source()

    @precondition(is_live)
    @rule(chance=Seldom)
    def stop(self, chance: int) -> None:
        if not chance:
            self.ring.stop()

    @rule(
        groups_per_batch=st.integers(1, 4), max_lag=st.integers(0, 4), more=st.integers(0, 12), engines=st.integers(1, 3),
        queue=st.integers(0, 2), oversample=Spares, times=st.sampled_from((1, 1, 1, 2)), hops=st.sampled_from((None, None, None, *HOPS)),
        least_left=st.sampled_from((None, None, None, 0, 1)),
    )  # fmt: skip
    def kill_and_resume(
        self, groups_per_batch: int, max_lag: int, more: int, engines: int, queue: int, oversample: int, times: int,
        hops: tuple[Hop, ...] | None, least_left: int | None,
    ) -> None:  # fmt: skip
        """What may change does; a watermark that was named would be out of its bounds."""
        config = replace(
            self.ring.config, groups_per_batch=groups_per_batch, max_lag=max_lag, last=max(self.ring.accounts.checkpoint - 1 + more, 0),
            engines=names(engines), watermark=0, queue=queue, oversample=oversample, save_every=queue,
            hops=self.ring.config.hops if hops is None else hops,
            least_left=self.ring.config.least_left if least_left is None else least_left,
        )  # fmt: skip
        self.ring.kill(config, times)

    def teardown(self) -> None:
        if hasattr(self, "ring") and not self.ring.is_broken:
            drive_to_the_end(self.ring)
            assert all(decide(self.ring.state, ghost) == [] for ghost in self.ring.ghosts)
            COUNTED.update(schedules=1, transitions=self.ring.transitions, kills=self.ring.kills, rollbacks=self.ring.rollbacks)


def names(engines: int) -> tuple[str, ...]:
    return tuple(f"engine.{i}" for i in range(engines))


@pytest.fixture(autouse=True, scope="module")
def counts() -> Iterator[None]:
    yield
    print(f"\n{dict(COUNTED)}")


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(
    max_examples=SCHEDULES,
    stateful_step_count=25,
    deadline=None,
    derandomize="RLFLOW_SCHEDULES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
TestSchedules.pytestmark = [pytest.mark.timeout(0)]  # type: ignore[attr-defined]
