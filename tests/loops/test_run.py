"""One short run of every shipped pipeline: what it prints, what it leaves, who did the work."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from run_cases import SMALL, Run
from transformers import AutoModelForCausalLM

from rlflow import Plan


@pytest.fixture
def finished(start_run: Callable[..., Run]) -> Run:
    run = start_run("grpo", *SMALL, "--steps", "3", "--save-every", "2")
    code, out, err = run.end(240)
    assert code == 0, err
    assert "held-out at version 0: reward" in out
    assert "best constant answer 0.270, best answer that ignores the operands 0.270" in out
    assert "step 3/3" in out
    return run


def test_a_run_leaves_its_metrics_plan_parameters_and_checkpoints(finished: Run) -> None:
    steps = finished.steps()
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["rows"] == 8 for line in steps)  # 4 prompts x 2 trajectories, one leaf each
    assert all(0.0 <= line["reward"] <= 1.0 for line in steps)
    assert all(line["staleness"].keys() == {"0"} for line in steps)  # max_lag=0 trains what the newest weights sampled
    assert all(line["pool_bytes"] == 0 for line in steps)  # every block is freed at its last read
    held_out = [line for line in finished.lines() if line["kind"] == "held_out"]
    assert [line["version"] for line in held_out] == [0, 3]

    plan = Plan.from_json((finished.folder / "plan.json").read_bytes())
    assert plan.graph.name == "grpo"
    parameters = json.loads((finished.folder / "parameters.json").read_text())
    assert parameters["pipeline"]["prompts"] == 4
    assert parameters["run"]["steps"] == 3
    assert sorted(p.name for p in (finished.folder / "checkpoints").iterdir()) == ["step-000002", "step-000003"]
    AutoModelForCausalLM.from_pretrained(finished.folder / "checkpoints" / "step-000003" / "actor")


def test_controller_engine_and_workers_are_processes_of_their_own(start_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, "--steps", "200")
    run.wait_for_step(1)
    children = run.children()
    assert children.keys() == {"host", "actor", "engine", "engine.rollout"}
    assert len({run.process.pid, *(child.pid for child in children.values())}) == 5


def test_every_replica_of_an_engine_samples_and_is_synced(start_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, "--engines", "2", "--steps", "3")
    code, _, err = run.end(240)
    assert code == 0, err
    logs = {path.stem for path in (run.folder / "logs").iterdir()}
    assert logs == {"host", "actor", "engine.0", "engine.0.rollout", "engine.1", "engine.1.rollout"}
    assert len(run.steps()) == 3


@pytest.mark.parametrize(
    ("pipeline", "flags"),
    [
        ("grpo", ("--group-size", "2", "--swap", "grpo=operators.advantage:rloo")),
        ("grpo", ("--group-size", "2", "--max-lag", "1", "--dp", "2", "--mini-batches", "2", "--kl", "0.01")),
        ("ppo", ()),
        ("distillation", ()),
        ("multiturn", ("--group-size", "2")),
        ("forking", ("--group-size", "2", "--branches", "3", "--dp", "2")),
        ("tools", ("--group-size", "2")),
        ("reasoning", ("--group-size", "2")),
    ],
)
def test_every_pipeline_runs(start_run: Callable[..., Run], pipeline: str, flags: tuple[str, ...]) -> None:
    run = start_run(pipeline, "--prompts", "4", "--eval-every", "1000", "--steps", "2", *flags)
    code, _, err = run.end(240)
    assert code == 0, err
    assert len(run.steps()) == 2


def test_the_same_seed_gives_the_same_run(start_run: Callable[..., Run]) -> None:
    runs = [start_run("grpo", *SMALL, "--steps", "2", "--seed", "7") for _ in range(2)]
    for run in runs:
        assert run.end(240)[0] == 0
    first, second = ([(line["reward"], line["tokens"]) for line in run.steps()] for run in runs)
    assert first == second
