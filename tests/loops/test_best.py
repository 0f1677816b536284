"""Evaluations of a real run: several samples a prompt, and the best checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable

from run_cases import Run


def test_the_best_and_the_newest_checkpoint_stay(start_run: Callable[..., Run]) -> None:
    run = start_run(
        "grpo", "--prompts", "8", "--group-size", "4", "--steps", "12", "--save-every", "0", "--keep", "1", "--keep-best",
        "--eval-every", "2", "--eval-samples", "4", "--eval-temperature", "1.0", "--engines", "2", "--lr", "0.03",
    )  # fmt: skip
    code, out, err = run.end(240)
    assert code == 0, err

    held_out = [line for line in run.lines() if line["kind"] == "held_out"]
    assert sorted(line["version"] for line in held_out) == [0, 2, 4, 6, 8, 10, 12]  # on two engines one may be overtaken
    for line in held_out:
        assert line["prompts"] == 222
        assert line["reward"] == line["avg@4"] == line["pass@1"] <= line["pass@2"] <= line["pass@4"]

    scores = {line["version"]: line["reward"] for line in held_out if line["version"]}  # of version 0 there is no checkpoint
    best = max(scores, key=lambda version: (scores[version], -version))
    folder = run.folder / "checkpoints"
    assert os.readlink(folder / "best") == f"step-{best:06d}"
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("step-")) == sorted({f"step-{best:06d}", "step-000012"})
    assert f"the best one by its held-out reward: {folder / f'step-{best:06d}'}" in out
    assert (folder / "best" / "actor" / "model.safetensors").exists()
