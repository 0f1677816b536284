"""What a run with a lag says about the mismatch of rollout and training, and what a rejection mask leaves to train."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_cases import SMALL, Run

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo.py"
WEIGHED = "        weighed = truncated_importance(weighed, old, ready.rollout_log_probs, ready.response_mask)\n"
MEASURED = "        mismatch_metrics(policy.current, old, ready.rollout_log_probs, ready.response_mask, ready.token_versions)\n"
MASKED = "    trained_mask = ready.response_mask\n"
REJECTED = "    trained_mask = reject_rows(ready.response_mask, old, ready.rollout_log_probs, by='k2', over='max', high=1e-3)\n"
IMPORTS = "from operators.mismatch import reject_rows\nfrom operators.mismatch_metrics import mismatch_metrics\n"


def steps_of(start_run: Callable[..., Run], tmp_path: Path, text: str) -> list[dict[str, Any]]:
    file = tmp_path / "grpo.py"
    file.write_text(text.replace("from operators.loss import", IMPORTS + "from operators.loss import", 1))
    run = start_run(str(file), *SMALL, "--max-lag", "1", "--steps", "4", "--save-every", "0")
    code, _, err = run.end(240)
    assert code == 0, err
    return run.steps()


def test_metrics_are_in_every_line_and_show_the_lag(start_run: Callable[..., Run], tmp_path: Path) -> None:
    """Batch 1 was sampled by the weights that train it, and both engines compute alike here; batch 3 by those before."""
    text = GRPO.read_text()
    if "mismatch_metrics(" not in text:
        text = text.replace(WEIGHED, MEASURED + WEIGHED)
    first, *_, last = (
        {name.removeprefix("mismatch_metrics/"): value for name, value in line["metrics"].items() if name.startswith("mismatch_metrics/")}
        for line in steps_of(start_run, tmp_path, text)
    )
    assert abs(first["kl_rollout_train_k3"]) < 1e-6
    assert first["ess_tokens"] > 1 - 1e-6
    assert last["kl_rollout_train_k3"] > 1e-5
    assert last["ess_tokens"] < 1 - 1e-5
    assert last["kl_gap_1"] > 1e-5
    assert math.isclose(first["ratio_max"], 1.0, abs_tol=1e-4)
    assert last["ratio_max"] > 1.001 > last["ratio_min"]


def test_what_is_rejected_is_neither_trained_nor_counted(start_run: Callable[..., Run], tmp_path: Path) -> None:
    steps = steps_of(start_run, tmp_path, GRPO.read_text().replace(MASKED, REJECTED))
    for line in steps:
        metrics = line["metrics"]
        assert metrics["actor.train/tokens"] == metrics["reject_rows/kept_tokens"]
        assert metrics["reject_rows/kept_rows"] + metrics["reject_rows/rejected_rows"] == line["rows"]
    assert sum(line["metrics"]["reject_rows/rejected_rows"] for line in steps) > 0
