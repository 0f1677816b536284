"""How the server starts and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from rollout_server import command, running_server, wait_for

from rlflow.engines.rollout import HttpRolloutClient, SamplingParams


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_sigterm_answers_what_is_in_flight_and_exits_with_0(model_dir: Path, tmp_path: Path) -> None:
    with running_server(model_dir, tmp_path) as server:
        flight = server.start_generations([[5, 6]], SamplingParams(max_new_tokens=1900, ignore_eos=True))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0
    answer = flight.results()[0]
    assert (answer.finish_reason.type, answer.finish_reason.message) == ("abort", "the engine is shutting down: aborted")


def test_the_server_dies_with_its_parent(model_dir: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    launch = "import os, subprocess, sys, time; subprocess.Popen([*sys.argv[1:], '--parent-pid', str(os.getpid())]); time.sleep(120)"
    parent = subprocess.Popen([sys.executable, "-c", launch, *command(model_dir, ready)])
    try:
        wait_for(ready.exists, "the ready file", timeout=90)
        found = json.loads(ready.read_text())
        assert HttpRolloutClient(found["url"]).ready()
        assert is_alive(found["pid"])
    finally:
        parent.kill()
        parent.wait(10)
    wait_for(lambda: not is_alive(found["pid"]), "the server to end", timeout=2)


def test_a_parent_that_is_gone_already_ends_it_at_once(model_dir: Path, tmp_path: Path) -> None:
    not_the_parent = os.getppid()
    arguments = command(model_dir, tmp_path / "ready.json", parent_pid=not_the_parent)
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert f"not {not_the_parent}: it has ended, or it is not the direct parent" in ended.stderr


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    ended = subprocess.run(command(tmp_path, tmp_path / "ready.json"), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"{tmp_path} is no model folder: it has no config.json" in ended.stderr
    assert not (tmp_path / "ready.json").exists()
