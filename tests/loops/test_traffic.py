"""P13: what crosses the controller's sockets does not depend on how long the rows are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from run_cases import Run


def _data(path: Path, letters: int) -> Path:
    """Prompts of one length, half of them for training."""
    rows = [(f"largest of {i % 10}, {i % 7}, {i % 3}? ".rjust(letters, "a"), str(max(i % 10, i % 7, i % 3))) for i in range(40)]
    columns = {
        "prompt": [prompt for prompt, _ in rows],
        "answer": [answer for _, answer in rows],
        "template": ["largest"] * 40,
        "split": ["train", "test"] * 20,
        "task": ["largest"] * 40,
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_socket_bytes_do_not_grow_with_sequence_length(start_run: Callable[..., Run], tmp_path: Path) -> None:
    measured = {}
    for letters in (30, 300):
        data = str(_data(tmp_path / f"{letters}.parquet", letters))
        run = start_run("grpo", "--data", data, "--prompts", "8", "--group-size", "4", "--steps", "3", "--eval-every", "1000")
        code, _, err = run.end(240)
        assert code == 0, err
        measured[letters] = [line["controller_socket_bytes"] for line in run.steps()[1:]], run.steps()[1]["tokens"]
    (short, short_tokens), (long, long_tokens) = measured[30], measured[300]
    assert long_tokens > 5 * short_tokens
    assert max(long) < 1.05 * min(short)
    calls = 32 + 6  # one a trajectory, one an operator of the batch and one for the sync
    assert max(long) <= calls * (4096 + 64 * 32)
