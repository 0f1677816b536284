"""A process that is killed ends the run: exit code 1, its name, how to go on, nothing left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_cases import SMALL, Run, gone


@pytest.mark.parametrize("victim", ["engine", "actor", "engine.rollout", "host"])
def test_kill_9_ends_the_run_with_its_name_and_a_way_on(start_run: Callable[..., Run], victim: str) -> None:
    run = start_run("grpo", *SMALL, "--steps", "500", "--save-every", "1")
    run.wait_for_step(3)
    children = run.children()
    killed_at = time.monotonic()
    children[victim].send_signal(signal.SIGKILL)
    code, _, err = run.end(30)
    assert time.monotonic() - killed_at < 10.0  # the bound that is promised
    assert code == 1
    assert f"`{victim}` (pid {children[victim].pid}) died: killed by SIGKILL" in err
    checkpoint = sorted((run.folder / "checkpoints").glob("step-*"))[-1] / "actor"
    assert f"--model {checkpoint}" in err
    assert all(gone(child) for child in children.values())
    assert not list(Path("/dev/shm").glob("*rlflow*"))


def test_the_way_on_leads_on(start_run: Callable[..., Run]) -> None:
    first = start_run("grpo", *SMALL, "--steps", "1")
    assert first.end(240)[0] == 0
    second = start_run("grpo", *SMALL, "--steps", "1", "--model", str(first.folder / "checkpoints" / "step-000001" / "actor"))
    code, _, err = second.end(240)
    assert code == 0, err


def test_ctrl_c_finishes_the_step_and_saves(start_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, "--steps", "500", "--save-every", "0")
    run.wait_for_step(2)
    children = run.children()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end(60)
    assert code == 0, err
    assert "stopped at version" in out
    last = run.steps()[-1]["step"]
    assert (run.folder / "checkpoints" / f"step-{last:06d}" / "actor" / "model.safetensors").exists()
    assert all(gone(child) for child in children.values())


def test_no_process_outlives_a_killed_controller(start_run: Callable[..., Run]) -> None:
    run = start_run("grpo", *SMALL, "--steps", "500")
    run.wait_for_step(1)
    everyone = [*run.children().values(), *(grandchild for child in run.children().values() for grandchild in child.children())]
    run.process.send_signal(signal.SIGKILL)
    assert all(gone(process) for process in everyone)
    assert not list(Path("/dev/shm").glob("*rlflow*"))
