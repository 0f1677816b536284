"""Every shipped pipeline checks and explains; those that are grpo.py with another algorithm differ from it in what is written here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import operators.loss
from rlflow import Plan
from rlflow.cli import main
from rlflow.flags import command_of, parsed
from rlflow.language.loss import rows_of
from rlflow.language.record import specs_of
from rlflow.show.diff import Row, diff

FOLDER = Path(__file__).parents[3] / "pipelines"
PIPELINES = sorted(file for file in FOLDER.glob("*.py") if "\n@pipeline\n" in file.read_text())


@dataclass(frozen=True)
class Differs:
    """What `rlflow diff pipelines/grpo.py pipelines/X.py` says of operators: gone, new, and what is another option or loss."""

    gone: set[str] = field(default_factory=set[str])
    new: set[str] = field(default_factory=set[str])
    options: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    elsewhere: set[str] = field(default_factory=set[str])  # other sections that differ


ONE_ANSWER = {"dispatch": {"options.n": 1}, "form_batch": {"options.prompts": 256}}
TWO_STEPS = {
    "pad": {"options.multiple": 2}, "rebalance": {"options.mini_batches": 2}, "shard": {"options.mini_batches": 2},
}  # fmt: skip
LOSS: dict[str, Any] = {"aggregate": "token-mean", "constant": None, "row_weight": "row"}  # of a loss whose options are as by default

DIFFERS: dict[str, Differs] = {
    "rloo": Differs({"grpo"}, {"rloo"}),
    "dr_grpo": Differs(
        options={
            "grpo": {"options.scale_by_std": False},
            "actor.train": {"losses.ppo_clip.aggregate": "seq-mean-token-sum-norm", "losses.ppo_clip.constant": 2.0},
        }
    ),
    "reinforce_pp": Differs({"grpo"}, {"reinforce_plus_plus"}, ONE_ANSWER),
    "dapo": Differs(
        new={"keep_mixed", "overlong_penalty"},
        options=TWO_STEPS
        | {
            "dispatch": {"options.n": 16},
            "form_batch": {"options.prompts": 16},
            "actor.train": {"losses.ppo_clip.clip_high": 0.28},
        },
    ),
    "gspo": Differs(
        options=TWO_STEPS
        | {
            "actor.train": {
                "losses.ppo_clip": None,
                "losses.gspo": LOSS | {"aggregate": "seq-mean-token-mean", "clip_low": 0.0003, "clip_high": 0.0004},
            }
        }
    ),
    "cispo": Differs(
        options=TWO_STEPS | {"actor.train": {"losses.ppo_clip": None, "losses.cispo": LOSS | {"clip_low": 1.0, "clip_high": 4.0}}}
    ),
    "grpo_async": Differs(new={"importance_weighted", "mismatch_metrics"}, elsewhere={"feedbacks"}),
    "distillation": Differs(
        {"integer_match", "shape_rewards", "grpo", "actor.log_probs"},
        {"teacher.load", "teacher.log_probs"},
        ONE_ANSWER
        | {
            "actor.train": {
                "losses.ppo_clip": None,
                "losses.entropy_bonus": "off",
                "losses.opd": LOSS | {"coef": 1.0, "estimator": "k1", "straight_through": True},
            }
        },
        {"workers", "feedbacks"},
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
    assert {row.name for row in found["operators"].removed} == DIFFERS[name].gone
    assert {row.name for row in found["operators"].added} == DIFFERS[name].new
    assert {row.name: changes(row) for row in found["operators"].changed if changes(row)} == DIFFERS[name].options
    assert found.keys() & {"workers", "feedbacks"} == DIFFERS[name].elsewhere


def test_stepwise_differs_from_multiturn_in_its_estimator_alone() -> None:
    operators = diff(plan_of("multiturn"), plan_of("stepwise")).sections["operators"]
    assert ([row.name for row in operators.removed], [row.name for row in operators.added]) == (["grpo"], ["gigpo"])
    assert [row.name for row in operators.changed if changes(row)] == []


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


def test_flags_of_a_variant_add_what_they_say() -> None:
    for name, flags, new in [
        ("reinforce_pp", ("--kl", "0.01"), {"reference.load", "reference.log_probs", "kl_in_reward"}),
        ("dapo", ("--overlong-mask",), {"mask_overlong"}),
        ("grpo_async", ("--stale", "mask"), {"mask_stale"}),
    ]:
        found = diff(plan_of(name), plan_of(name, *flags)).sections["operators"]
        assert ({row.name for row in found.added}, found.removed) == (new, ())


LOSSES = ["cispo", "clip_cov", "dppo", "dro", "gmpo", "gpg", "gspo", "kl_cov", "ppo_clip", "sapo", "topr"]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_policy_loss_swaps_in_with_one_flag(loss: str) -> None:
    (train,) = (node for node in plan_of("grpo", "--loss", f"operators.loss:{loss}").graph.nodes if node.name == "actor.train")
    assert [one.name for one in train.losses if one.active] == [loss, "entropy_bonus"]


def test_the_losses_that_swap_in_are_all_that_read_advantages() -> None:
    assert [name for name in operators.loss.__all__ if "advantages" in specs_of(_reads(name))] == LOSSES


def _reads(name: str) -> Any:
    cls: Any = getattr(operators.loss, name)
    required = {field.name: 1.0 for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}  # coefficients, all of them
    return rows_of(cls(**required))


ESTIMATORS = ["gpg", "grpo", "grpo_passk", "maxrl", "opo", "reinforce", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_of_rewards_alone_swaps_in_with_one_flag(estimator: str) -> None:
    plan = plan_of("grpo", "--advantage", f"operators.advantage:{estimator}")
    assert [w.code for w in plan.warnings] == []
    assert estimator in {node.name for node in plan.graph.nodes}


@pytest.mark.parametrize("name", ["grpo", *DIFFERS])
def test_a_variant_runs_on_two_ranks_in_two_mini_batches(name: str) -> None:
    assert plan_of(name, "--dp", "2", "--mini-batches", "2").warnings == ()
