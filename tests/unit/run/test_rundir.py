"""The folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlflow.errors import UsageError
from rlflow.run.rundir import RunDir


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    RunDir.create(tmp_path, "one", "grpo").close()
    with pytest.raises(UsageError, match=f"run {tmp_path}/one exists already: choose another --name, or remove it"):
        RunDir.create(tmp_path, "one", "grpo")


@pytest.mark.parametrize("name", ["../up", "a/b", ".", ".."])
def test_a_name_is_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a plain folder name"):
        RunDir.create(tmp_path, name, "grpo")


def test_runs_without_a_name_do_not_share_a_folder(tmp_path: Path) -> None:
    runs = [RunDir.create(tmp_path, None, "grpo") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all(run.name.startswith("grpo-") for run in runs)
    for run in runs:
        run.close()


def test_a_metric_is_on_disk_at_once(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "one", "grpo")
    run.metric({"step": 1})
    run.metric({"step": 2, "nan": float("nan")})
    assert [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()] == [{"step": 1}, {"step": 2, "nan": None}]
    run.close()


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "one", "grpo")
    run.log("host").write_bytes(b"\n".join(b"line %d" % i for i in range(9)) + b" \xff\n")
    assert run.tail("host", 2) == "line 7\nline 8 �"
    assert run.tail("nobody") == ""
    run.close()


def test_a_run_that_goes_on_appends_after_the_last_whole_line(tmp_path: Path) -> None:
    first = RunDir.create(tmp_path, "one", "grpo")
    first.metric({"step": 1})
    first.close()
    with (first.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "rew')  # killed in the middle of a write
    second = RunDir.reopen(first.path)
    second.metric({"step": 2})
    second.close()
    assert (first.path / "metrics.jsonl").read_text() == '{"step":1}\n{"step":2}\n'
    assert second.path == first.path


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "one", "grpo")
    run.write_json("a.json", {"x": 1})
    with pytest.raises(TypeError):
        run.write("a.json", "no bytes")  # type: ignore[arg-type]
    assert json.loads((run.path / "a.json").read_text()) == {"x": 1}
    run.close()
