"""Every shipped pipeline checks and explains; those that are grpo.py with another algorithm differ from it in what is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlflow import Plan
from rlflow.cli import main
from rlflow.flags import command_of, parsed
from rlflow.show.diff import Row, diff

FOLDER = Path(__file__).parents[3] / "pipelines"
PIPELINES = sorted(file for file in FOLDER.glob("*.py") if "\n@pipeline\n" in file.read_text())

# what `rlflow diff pipelines/grpo.py pipelines/X.py` says of operators: gone, new, and what is another option or loss
DIFFERS: dict[str, tuple[set[str], set[str], dict[str, dict[str, Any]]]] = {
    "rloo": ({"grpo"}, {"rloo"}, {}),
    "reinforce_pp": ({"grpo"}, {"reinforce_plus_plus"}, {"dispatch": {"options.n": 1}, "form_batch": {"options.prompts": 256}}),
    "grpo_async": (set(), {"importance_weighted"}, {}),
    "dr_grpo": (
        set(),
        set(),
        {
            "grpo": {"options.scale_by_std": False},
            "actor.train": {"losses.ppo_clip.aggregate": "seq-mean-token-sum-norm", "losses.ppo_clip.constant": 2.0},
        },
    ),
}


def plan_of(name: str, *flags: str) -> Plan:
    command = command_of(str(FOLDER / f"{name}.py"))
    return command.plan(parsed(command, flags))


def changes(row: Row) -> dict[str, Any]:
    """Options and losses of a call that are others; a loss that is off in grpo.py, and a field that comes from another writer, are none."""
    return {c.what: c.b for c in row.changes if c.what.split(".")[0] in ("options", "losses") and (c.a, c.b) != ("off", None)}


@pytest.mark.parametrize("name", DIFFERS)
def test_a_variant_differs_from_grpo_only_where_its_algorithm_does(name: str) -> None:
    found = diff(plan_of("grpo"), plan_of(name)).sections
    gone, new, options = DIFFERS[name]
    assert {row.name for row in found["operators"].removed} == gone
    assert {row.name for row in found["operators"].added} == new
    assert {row.name: changes(row) for row in found["operators"].changed if changes(row)} == options
    assert "workers" not in found
    assert ("feedbacks" in found) == (name == "grpo_async")


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_every_pipeline_checks_without_a_warning(file: Path) -> None:
    command = command_of(str(file))
    assert command.name == file.stem
    assert command.plan({}).warnings == ()


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_every_pipeline_explains(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(file)]) == 0
    assert "response_mask" in capsys.readouterr().out


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_every_pipeline_opens_with_its_ring(file: Path) -> None:
    docstring = file.read_text().split('"""')[1]
    assert "dataset → dispatch → rollout" in docstring or "question → dispatch → rollout" in docstring
    assert "sync" in docstring


@pytest.mark.parametrize("name", ["grpo", *DIFFERS])
def test_a_variant_runs_on_two_ranks_in_two_mini_batches(name: str) -> None:
    assert plan_of(name, "--dp", "2", "--mini-batches", "2").warnings == ()
