"""A real run keeps to its plan: a checkpoint holds what is declared, and as many bytes cross as were counted before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_cases import Run
from safetensors import safe_open

from rlflow import Plan

STATE_IN = {  # file of a worker's folder → the state that it holds
    "model.safetensors": "weights",
    "trainer/optimizer.safetensors": "optimizer",
    "trainer/rng.safetensors": "rng",
}
NO_STATE = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "trainer/state.json"}
DESCRIPTION = {"format", "files", "kind", "dp_size"}  # of trainer/state.json: what the checkpoint is, not what it holds


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Plan]:
    """Three steps of an actor on two ranks, with a reference that is not trained."""
    import subprocess
    import sys

    root = tmp_path_factory.mktemp("declared")
    file = Path(__file__).parents[2] / "pipelines" / "grpo.py"
    sizes = ("--prompts", "8", "--group-size", "4", "--dp", "2", "--kl", "0.01", "--steps", "3", "--eval-every", "1000")
    command = [sys.executable, "-m", "rlflow.cli", "run", str(file), "--root", str(root), "--name", "run", *sizes]
    run = Run(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root), root / "run")
    code, _, err = run.end(280)
    assert code == 0, err
    return run, Plan.from_json((run.folder / "plan.json").read_bytes())


def held(folder: Path) -> set[tuple[str, str]]:
    """(worker, state) for every file and number of a checkpoint; a file that is neither state nor description fails the test."""
    found: set[tuple[str, str]] = set()
    for worker in filter(Path.is_dir, folder.iterdir()):
        files = {str(path.relative_to(worker)) for path in worker.rglob("*") if path.is_file()}
        assert files - STATE_IN.keys() <= NO_STATE
        found |= {(worker.name, STATE_IN[name]) for name in files & STATE_IN.keys()}
        numbers = json.loads((worker / "trainer" / "state.json").read_text()).keys() - DESCRIPTION
        found |= {(worker.name, name) for name in numbers}
    return found


def nbytes(file: Path) -> int:
    with safe_open(file, framework="pt") as tensors:  # type: ignore[no-untyped-call]
        return sum(tensors.get_tensor(name).nbytes for name in tensors.keys())  # noqa: SIM118


def test_C8_a_checkpoint_holds_what_is_declared_and_nothing_else(finished: tuple[Run, Plan]) -> None:
    run, plan = finished
    assert held(run.folder / "checkpoints" / "step-000003") == {(s.owner, s.name) for s in plan.state if s.in_checkpoint}


def test_state_has_the_bytes_that_are_declared(finished: tuple[Run, Plan]) -> None:
    run, plan = finished
    folder = run.folder / "checkpoints" / "step-000003" / "actor"
    parameters = nbytes(folder / "model.safetensors") // 4
    said = {s.name: s.bytes for s in plan.state if s.owner == "actor"}
    assert said["weights"] == "4*N_actor"
    assert said["optimizer"] == "8*N_actor"
    assert nbytes(folder / "trainer" / "optimizer.safetensors") == 8 * parameters
    assert nbytes(folder / "trainer" / "rng.safetensors") == int(said["rng"]) == 2 * 5056


def test_M1_the_controller_hears_and_tells_what_the_edges_say(finished: tuple[Run, Plan]) -> None:
    run, plan = finished
    planned = sum(int(edge.bytes) for edge in plan.edges if "controller" in (edge.from_, edge.to))
    measured = [line["controller_socket_bytes"] for line in run.steps()[1:]]
    assert len(measured) == 2
    assert all(planned / 1.3 < crossed < planned * 1.3 for crossed in measured), (planned, measured)
