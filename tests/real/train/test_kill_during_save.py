"""kill -9 at any moment of a save: what is restored is the last checkpoint that was reported, or the one being written, whole."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import dp_scenarios as scenarios
import pytest
import torch

from rlflow.engines.tiny import make_tiny_model
from rlflow.engines.train.torch import TorchEngine

KILLS = 8


def save_for_ever(model: Path, target: Path, reports: Connection) -> None:
    """Train and save over the same path, telling the version of each save that came back."""
    torch.set_num_threads(1)
    rows = scenarios.make_rows(dtype=torch.float32)
    engine = TorchEngine(model, lr=1e-3)
    if target.exists():
        engine.restore(target)
    while True:
        engine.train(scenarios.Objective(((rows.take(0, 1),),)))
        engine.save(target)
        reports.send(engine.version)


def test_C9_previous_or_new_checkpoint_loads_after_each_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny_model(tmp_path / "model", alphabet="0123456789+= ", seed=1, hidden_size=32)
    target, reader = tmp_path / "runs" / "checkpoint", TorchEngine(model)
    context, before = multiprocessing.get_context("forkserver"), 0
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[3]))))
    context.set_forkserver_preload(["dp_scenarios"])  # imports torch once; its children start in no time
    for kill in range(KILLS):
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=save_for_ever, args=(model, target, theirs), daemon=True)
        child.start()
        theirs.close()
        assert mine.poll(60), "no save within 60 s"
        reported = [mine.recv()]
        time.sleep(0.013 * kill)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(timeout=20)
        while mine.poll():
            try:
                reported.append(mine.recv())
            except EOFError:
                break
        assert reported[0] == before + 1, "it did not continue from the checkpoint"
        reader.restore(target)
        assert reader.version in (reported[-1], reported[-1] + 1)
        before = reader.version
    assert before >= KILLS
