"""The clock of benchmarks/async_overlap.py, on runs that can be added up by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from rlflow.run.controller.state import Config

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("simulated")


def test_steps_follow_one_another_without_lag_and_overlap_with_it(simulated: Any) -> None:
    # weights 2 s, ten tokens of one second each, a train step of 3 s
    delays = simulated.Delays(
        engines=1, slots=1, step_base=1.0, step_each=0.0, train_base=3.0, train_rate=1e12, sync=2.0, median=10.0,
        spread_prompt=0.0, spread_trajectory=0.0,
    )  # fmt: skip
    times = {}
    for lag in (0, 1):
        config = Config(n=1, groups_per_batch=1, max_lag=lag, last=2, engines=("e",))
        times[lag] = [reading.time for reading in simulated.SimulatedRun(config, delays, seed=0).run().readings]
    assert times[0] == pytest.approx([15, 30, 45])
    assert times[1] == pytest.approx([15, 27, 39])  # the engine goes on while the trainer trains, and stands still for 2 s of every 12


def test_tokens_are_as_old_as_the_weights_that_sampled_them(simulated: Any) -> None:
    delays = simulated.Delays(
        engines=1, slots=1, step_base=1.0, step_each=0.0, train_base=3.0, train_rate=1e12, sync=2.0, median=10.0,
        spread_prompt=0.0, spread_trajectory=0.0,
    )  # fmt: skip
    run = simulated.SimulatedRun(Config(n=1, groups_per_batch=1, max_lag=1, last=1, engines=("e",)), delays, seed=0).run()
    # the second one has come to 3 tokens when version 1 is there, and is trained on version 1
    assert [reading.gaps for reading in run.readings] == [{0: 10}, {0: 17, 1: 3}]


def test_an_engine_that_runs_more_is_slower_for_each(simulated: Any) -> None:
    delays = simulated.Delays(
        engines=1, slots=2, step_base=1.0, step_each=0.5, train_base=3.0, train_rate=1e12, sync=2.0, median=10.0,
        spread_prompt=0.0, spread_trajectory=0.0,
    )  # fmt: skip
    run = simulated.SimulatedRun(Config(n=2, groups_per_batch=1, max_lag=0, last=0, engines=("e",)), delays, seed=0).run()
    assert [reading.time for reading in run.readings] == pytest.approx([2 + 10 * 2.0 + 3])
    assert delays.peak_rate == 1.0


def test_the_same_seed_gives_the_same_run(simulated: Any) -> None:
    config = Config(n=2, groups_per_batch=4, max_lag=2, last=9, engines=("a", "b"))
    runs = [simulated.SimulatedRun(config, simulated.Delays(slots=8), seed).run().readings for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]
    assert max(runs[0][-1].gaps) <= 2
