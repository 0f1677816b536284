"""What the README tells a newcomer is what CI runs, and what the repository holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import operators.advantage
import operators.loss
from pipelines.grpo import grpo
from rlflow.language.aggregate import Aggregate

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (command,) = re.findall(r"^python3 -m venv .*pytest$", README, re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_file_that_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_constraints_pin_every_dependency_exactly() -> None:
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    listed = re.findall(r'^  "([A-Za-z-]+)(?:\[[a-z]+\])?>=', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {name.lower() for name in listed} <= pinned | {"rlflow"}


def test_the_reward_of_the_readme_stands_in_a_pipeline() -> None:
    (block,) = re.findall(r"```python\n(# my_reward\.py\n.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    plan = grpo(reward=names["rewarded"]).replace("shape_rewards", names["short"])
    assert [node.params["name"] for node in plan.graph.nodes if node.name.startswith("add_part")] == ["correct", "format", "judge"]


def test_the_catalogue_is_whole() -> None:
    """Every estimator, loss and aggregation is named in the section on swapping."""
    section = README.split("## Swapping an algorithm")[1].split("\n## ")[0]
    said = set(re.findall(r"`\"?([a-z_-]+)\"?`", section))
    helpers = {"AdvantageFn", "estimate", "whiten"}
    assert {*operators.advantage.__all__} - helpers | {*operators.loss.__all__} | {*get_args(Aggregate)} <= said


def test_every_pipeline_is_linked_and_measured() -> None:
    for file in (ROOT / "pipelines").glob("*.py"):
        if "\n@pipeline\n" in file.read_text():
            assert f"(pipelines/{file.name})" in README
            assert f"| `{file.name}" in README or file.name == "reasoning.py"  # its task is of its user
