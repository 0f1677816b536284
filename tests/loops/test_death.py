"""How a run ends before its time, and that nothing is left behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from run_cases import SMALL, Run, gone


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
