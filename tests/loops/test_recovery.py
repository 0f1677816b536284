"""Whoever is killed in the middle of a run, it ends as one that nobody disturbed: at max_lag=0 with the same weights, bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow
import pytest
from run_cases import SMALL, Run, gone

from rlflow.run.ledger import read_books

pa: Any = pyarrow  # it has no types
FLAGS = (*SMALL, "--steps", "40", "--save-every", "4", "--dp", "2")
RESUME = """
import sys
from pathlib import Path
from rlflow.compile.plan import Plan
from rlflow.run.record import Record
from rlflow.run.screen import PlainScreen
from rlflow.run.session import resume

folder = Path(sys.argv[1])
record = Record.read(folder)
outcome = resume(Plan.from_json((folder / "plan.json").read_bytes()), record.run, PlainScreen(sys.stdout, record.run.steps), folder)
sys.exit(outcome.why if outcome.ended != "done" else 0)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights at the end of a run that nobody disturbs."""
    root = tmp_path_factory.mktemp("undisturbed")
    file = Path(__file__).parents[2] / "pipelines" / "grpo.py"
    command = [sys.executable, "-m", "rlflow.cli", "run", str(file), "--root", str(root), "--name", "run", *FLAGS]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    return weights(root / "run")


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "step-000040" / "actor" / "model.safetensors").read_bytes()


def wait_for_lines(run: Run, count: int) -> None:
    """That many steps, those of timelines that were left included."""
    deadline = time.monotonic() + 300.0
    while len(run.steps()) < count:
        assert run.process.poll() is None, run.process.communicate()
        assert time.monotonic() < deadline, f"{len(run.steps())} steps in 300 s"
        time.sleep(0.02)


def trained_once(folder: Path) -> None:
    """Every batch on the timelines that were not left, and 40 x 4 prompts in them, each in one."""
    last = {line["step"]: line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if line["kind"] == "step"}
    assert sorted(last) == list(range(1, 41))
    books = read_books(folder)
    assert (books.kept.groups, books.lost, len(books.finished)) == (160, {}, 160)
    assert not list((folder / "rows").glob("*/*"))  # nothing is left that a resume could ask for


@pytest.mark.timeout(900)  # ten starts of processes
def test_processes_that_are_killed_one_after_another_cost_nothing_but_time(start_run: Callable[..., Run], undisturbed: bytes) -> None:
    run = start_run("grpo", *FLAGS)
    died = []
    for victim in ("engine", "actor.1", "engine.rollout", "host"):
        wait_for_lines(run, len(run.steps()) + 3)
        process = run.children()[victim]
        process.send_signal(signal.SIGKILL)
        assert gone(process)
        died.append(f"`{victim}` (pid {process.pid}) died: killed by SIGKILL")
    code, out, err = run.end(300)
    assert code == 0, err
    assert all(line in out for line in died)
    assert weights(run.folder) == undisturbed
    trained_once(run.folder)


def as_format_1(rows: Path) -> int:
    """Write the rows of a run as an older rlflow did, an Arrow file a name; how many there are."""
    count = 0
    for file in rows.glob("*/*.arrows"):
        source = pa.BufferReader(file.read_bytes())
        while source.tell() < source.size():
            reader = pa.ipc.open_stream(source)
            (batch,) = reader
            head = json.loads(reader.schema.metadata[b"rlflow.rows"])
            old = {"format": 1, "checksum": head["checksum"], "facts": head["facts"]}
            schema = reader.schema.with_metadata({b"rlflow.rows": json.dumps(old)})
            with pa.ipc.new_file(file.with_name(f"{head['name']}.arrow"), schema) as writer:
                writer.write_batch(pa.record_batch(batch.columns, schema=schema))
            count += 1
        file.unlink()
    return count


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rows", ["this rlflow", "an older one"])
def test_a_run_whose_controller_is_killed_goes_on(start_run: Callable[..., Run], undisturbed: bytes, rows: str) -> None:
    """With the rows that are there, which `rows` wrote: one that cannot be read is a prompt that is dropped."""
    run = start_run("grpo", *FLAGS)
    wait_for_lines(run, 6)
    everyone = [psutil.Process(run.process.pid), *run.children().values()]
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate(timeout=30)
    assert all(gone(process) for process in everyone)
    assert not list((run.folder / "checkpoints").glob("step-000040"))
    assert rows == "this rlflow" or as_format_1(run.folder / "rows") > 0
    again = subprocess.run([sys.executable, "-c", RESUME, str(run.folder)], capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "dropped" not in again.stdout
    assert weights(run.folder) == undisturbed
    trained_once(run.folder)
