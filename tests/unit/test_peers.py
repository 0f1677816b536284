"""Other frameworks' loops, declared without bodies: right as they ship, refused with each flag that broke them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.peers.nemo_grpo import nemo_grpo
from pipelines.peers.verl_ppo import verl_ppo
from rlflow import CheckFailed, Plan
from rlflow.cli import main
from rlflow.errors import UsageError
from rlflow.run.graph import GraphView

PEERS = Path(__file__).parents[2] / "pipelines" / "peers"
Loop = Callable[..., Plan]

RIGHT: dict[str, tuple[Loop, dict[str, Any]]] = {
    "verl": (verl_ppo, {}),
    "verl, grpo": (verl_ppo, {"adv_estimator": "grpo"}),
    "verl, KL twice": (verl_ppo, {"use_kl_loss": True, "use_kl_in_reward": True}),
    "verl, no reference and no KL": (verl_ppo, {"reference": False}),
    "verl, bypass": (verl_ppo, {"policy_loss": "bypass", "calculate_log_probs": True}),
    "verl, bypass without a second forward": (verl_ppo, {"policy_loss": "bypass", "calculate_log_probs": True, "old_log_prob": False}),
    "nemo": (nemo_grpo, {}),
    "nemo, lagging and corrected": (nemo_grpo, {"max_trajectory_age_steps": 1, "importance_sampling_correction": True}),
    "nemo, no filtering": (nemo_grpo, {"overlong": False, "report_truncated": False}),
    "nemo, on-policy ratio": (nemo_grpo, {"force_on_policy_ratio": True, "skip_prev_logprobs": True}),
    "nemo, no KL": (nemo_grpo, {"reference_policy_kl_penalty": 0.0, "skip_reference_policy_logprobs": True}),
}

BROKEN: dict[str, tuple[Loop, dict[str, Any], str, str]] = {
    "D22 response_mask": (verl_ppo, {"response_mask": False}, "RLF008", "nothing makes `response_mask`, which `gae` reads"),
    "D22 advantages": (verl_ppo, {"advantages": False}, "RLF008", "nothing makes `advantages`, which `VanillaLoss` reads"),
    "D22 ref_log_prob": (
        verl_ppo, {"use_kl_loss": True, "reference": False}, "RLF008", "nothing makes `ref_log_prob`, which `KlLoss` reads",
    ),
    "D22 ref_log_prob in the reward": (
        verl_ppo, {"use_kl_in_reward": True, "reference": False}, "RLF008", "nothing makes `ref_log_prob`, which `apply_kl_penalty` reads",
    ),
    "D22 truncated": (nemo_grpo, {"report_truncated": False}, "RLF008", "nothing makes `truncated`, which `overlong_filtering` reads"),
    "G22 estimator": (
        verl_ppo, {"adv_estimator": "optimal_token_baseline"}, "RLF004",
        "missing a required argument: 'old_log_probs' in the call of `optimal_token_baseline`",
    ),
    "G22 loss": (verl_ppo, {"policy_loss": "bypass"}, "RLF008", "nothing makes `rollout_log_probs`, which `BypassLoss` reads"),
    "S5": (
        verl_ppo, {"response_mask_selected": False}, "RLF121", "`response_mask` of `Columns` is mask(response), got mask(attention)",
    ),
    "V18 verl": (verl_ppo, {"old_log_prob": False}, "RLF008", "nothing makes `old_log_probs`, which `VanillaLoss` reads"),
    "V18 nemo": (nemo_grpo, {"skip_prev_logprobs": True}, "RLF008", "nothing makes `prev_logprobs`, which `ClippedPGLoss` reads"),
    "V18 nemo, a second reader": (
        nemo_grpo, {"skip_prev_logprobs": True, "force_on_policy_ratio": True, "importance_sampling_correction": True}, "RLF008",
        "nothing makes `prev_logprobs`, which `importance_sampling_weights` reads",
    ),
    "V18 nemo, reference": (
        nemo_grpo, {"skip_reference_policy_logprobs": True}, "RLF008", "nothing makes `reference_policy_logprobs`, which `KlPenalty` reads",
    ),
    "lag": (
        nemo_grpo, {"max_trajectory_age_steps": 1}, "RLF307",
        "`policy.train` mixes rows sampled at `policy` k - 1 with log-probs at k, uncorrected",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loop", "flags"), RIGHT.values(), ids=RIGHT)
def test_the_loop_checks_clean(loop: Loop, flags: dict[str, Any]) -> None:
    assert loop(**flags).warnings == ()


@pytest.mark.parametrize(("loop", "flags", "code", "message"), BROKEN.values(), ids=BROKEN)
def test_a_flag_that_broke_users_is_one_error(loop: Loop, flags: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(CheckFailed) as refused:
        loop(**flags)
    assert [(d.code, d.message) for d in refused.value.diagnostics] == [(code, message)]


@pytest.mark.parametrize("file", ["verl_ppo.py", "nemo_grpo.py"])
def test_the_table_of_a_file_is_true(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag line of the docstring, given to `rlflow check`, is refused with the code at its end."""
    docstring = (PEERS / file).read_text().split('"""')[1].replace("\n    --", " --")
    rows = [line for line in docstring.splitlines() if line.startswith("--")]
    assert len(rows) >= 5
    for row in rows:
        flags, *_, code = re.split(r"\s{2,}", re.sub(r"\s+--", " --", row))
        assert main(["check", str(PEERS / file), *flags.split(), "--format", "json"]) == 3
        assert [error["code"] for error in json.loads(capsys.readouterr().out)["errors"]] == [code]


def test_the_command_line_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(PEERS / "verl_ppo.py"), "--no-response-mask-selected"]) == 3
    said = capsys.readouterr()
    assert "error[RLF121]: `response_mask` of `Columns` is mask(response), got mask(attention)" in said.out + said.err


@pytest.mark.parametrize("file", ["verl_ppo.py", "nemo_grpo.py"])
def test_explain_works_without_bodies(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(PEERS / file)]) == 0
    assert "mask(response)" in capsys.readouterr().out


def test_the_graph_is_drawn_without_bodies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", str(PEERS / "nemo_grpo.py"), "--mermaid"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("flowchart")
    assert "generation.run_multi_turn_rollout" in drawn


def test_what_the_reference_makes_is_dropped_when_no_kl_is_on() -> None:
    plan = verl_ppo()
    needed = {node.name for node in plan.graph.nodes if node.id in plan.facts.needed}
    assert "actor.compute_log_prob" in needed
    assert "ref.compute_log_prob" not in needed


@pytest.mark.parametrize("loop", [verl_ppo, nemo_grpo])
def test_run_refuses_before_anything_starts_and_names_each(loop: Loop) -> None:
    plan = loop()
    with pytest.raises(UsageError) as refused:
        GraphView(plan).check_runnable()
    told, *named = str(refused.value).splitlines()
    assert told == f"`{plan.graph.name}` can be checked, explained and drawn, but not run: these are declared without a body"
    needed = {node.title for node in plan.graph.nodes if node.operator and node.id in plan.facts.needed and node.rows != "form"}
    losses = {loss.name for node in plan.graph.nodes for loss in node.losses if loss.active}
    assert {line.split()[0] for line in named} == needed | losses
    assert all(f"{plan.graph.name}.py:" in line for line in named)


def test_run_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(PEERS / "verl_ppo.py"), "--root", str(tmp_path), "--steps", "1"]) == 2
    assert "  rollout.generate_sequences  " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
