"""What a run tells: bytes in the pool, a line a step, a line an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_loop import small

from rlflow.data.pool.protocol import Key
from rlflow.run.batchscope import BatchResult
from rlflow.run.blocks import Blocks
from rlflow.run.controller.state import Config, State
from rlflow.run.graph import GraphView
from rlflow.run.ready import Landed
from rlflow.run.report import Report
from rlflow.run.rundir import RunDir

KEYS = [Key(0, 64 * i, 64 * (i + 1), 1, i) for i in range(1, 4)]


class Screen:
    """Keeps what a person would see."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, Any]] = []
        self.notes: list[str] = []

    def step(self, line: Mapping[str, Any]) -> None:
        self.steps.append(line)

    def held_out(self, line: Mapping[str, Any]) -> None:
        self.steps.append(line)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Report]:
    run_dir = RunDir.create(tmp_path, "one", "small")
    yield Report(GraphView(small()), run_dir, Screen(), {}, Blocks(lambda keys: None))
    run_dir.close()


def step_of(report: Report, landed: list[Landed], result: BatchResult) -> Mapping[str, Any]:
    report.trained(0, State(Config(n=2, groups_per_batch=3, max_lag=0, last=0, engines=("engine",))), landed, result, 0.5)
    return report.screen.steps[-1]  # type: ignore[attr-defined,no-any-return]


def test_the_peak_is_of_the_time_since_the_last_step(report: Report) -> None:
    for key in KEYS:
        report.blocks.put(key)
    report.blocks.free(KEYS[:2])
    assert step_of(report, [], BatchResult())["pool_peak_bytes"] == sum(key.nbytes for key in KEYS)
    assert step_of(report, [], BatchResult())["pool_peak_bytes"] == KEYS[2].nbytes


def test_a_step_counts_leaf_rows_and_tokens_means_what_was_measured_and_sums_what_was_counted(report: Report) -> None:
    mean = next(name for name in sorted(report.view.means) if name.startswith(f"{report.view.sampler.name}/"))
    first = Landed(1, KEYS[0], (3, 4), {mean: 1.0, "episodes/cut": 1.0})
    landed = [first, Landed(1, KEYS[1], (5,), {mean: 2.0, "episodes/cut": 1.0, "failed/crash": 7.0})]
    line = step_of(report, landed, BatchResult({"judge/is_correct": 0.5, "actor.train/loss": 1.0}, {"judge": 0.25}))
    assert (line["step"], line["rows"], line["tokens"]) == (1, 3, 12)
    counted = {"episodes/cut": 2.0, "failed/crash": 7.0}
    assert line["metrics"] == {mean: 1.5, "judge/is_correct": 0.5, "actor.train/loss": 1.0} | counted
    assert line["reward"] == 0.5
    assert line["seconds_by_hop"] == {"batch": 0.5, "judge": 0.25}


def test_what_was_measured_between_two_steps_is_told_once(report: Report) -> None:
    report.measured({"sync/bytes": 9.0})
    report.took("sync", 0.1)
    report.took("sync", 0.2)
    first = step_of(report, [], BatchResult())
    assert first["metrics"] == {"sync/bytes": 9.0}
    assert first["seconds_by_hop"]["sync"] == pytest.approx(0.3)
    assert step_of(report, [], BatchResult())["metrics"] == {}


def test_the_last_held_out_reward_is_kept_by_the_name_of_what_evaluated(report: Report) -> None:
    report.evaluated("engine.evaluate", 0, {"reward": 0.1}, 1.0)
    report.evaluated("engine.evaluate", 9, {"reward": 0.4}, 1.0)
    report.evaluated("engine.evaluate", 5, {"reward": 0.2}, 9.0)  # it took longer
    assert report.last_reward == {"engine.evaluate": 0.4}


def test_a_dropped_prompt_is_news_unless_a_filter_or_a_flag_did_its_work(report: Report) -> None:
    report.dropped(3, "attempts", "trajectory 3.0.2 failed 3 times\nTraceback")
    report.dropped(4, "keep_mixed", "`keep_mixed` keeps no row of it")
    report.dropped(5, "oversampled", "more groups are due by batch 2 than there are seats")
    assert report.screen.notes == ["prompt 3 dropped (attempts): trajectory 3.0.2 failed 3 times"]  # type: ignore[attr-defined]
    assert (report.run_dir.path / "metrics.jsonl").read_text().count('"kind":"dropped"') == 3


def test_a_mean_that_was_noted_of_trajectories_and_of_a_batch_is_over_the_rows_of_both(report: Report) -> None:
    landed = [Landed(1, KEYS[0], (3,), {"reward/format#sum": 2.0, "reward/format#rows": 2.0}), Landed(1, KEYS[1], (5,), {})]
    line = step_of(report, landed, BatchResult({"reward/format#sum": 1.0, "reward/format#rows": 2.0}, {}))
    assert line["metrics"] == {"reward/format": 0.75}  # 3 of 4: a trajectory that noted nothing is none of them


def test_a_mean_of_held_out_answers_is_told_as_one(report: Report) -> None:
    report.evaluated("engine.evaluate", 0, {"reward": 0.1, "reward/format#sum": 1.0, "reward/format#rows": 4.0}, 1.0)
    assert report.screen.steps[-1]["reward/format"] == 0.25  # type: ignore[attr-defined]
