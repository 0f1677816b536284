"""What the README tells a newcomer is what CI runs, and what the repository holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipelines.grpo import grpo

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
