"""Options of a pipeline: fields of a frozen dataclass that are its parameters, its flags, and counts where they count something."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from start import Start

from rlflow import CheckFailed, Loss, Plan, count, pipeline
from rlflow.cli import main
from rlflow.errors import UsageError
from rlflow.flags import command_of, parsed
from rlflow.language.options import flat_parameters, gathered, groups_of, spread

Prompts = Annotated[int, count("prompts")]


@dataclass(frozen=True, kw_only=True)
class Options:
    prompts: Prompts = 64
    dp: Annotated[int, count("ranks"), "ranks that train"] = 2
    note: str = ""


@pipeline
def loop(options: Options = Options(prompts=8), lag: int = 0) -> None:
    s = Start(prompts=options.prompts, dp=options.dp, max_lag=lag)
    s.finish(s.rows())


def test_fields_are_parameters_in_the_place_of_the_one_that_holds_them() -> None:
    assert [(p.name, p.default) for p in flat_parameters(loop).values()] == [("prompts", 8), ("dp", 2), ("note", ""), ("lag", 0)]


def test_gathered_and_spread_are_inverse() -> None:
    flat = {"prompts": 4, "dp": 2, "note": "x", "lag": 1}
    assert gathered(loop, flat) == {"options": Options(prompts=4, dp=2, note="x"), "lag": 1}
    assert spread(loop, gathered(loop, flat)) == flat


def test_what_is_not_given_is_as_in_the_default_of_this_pipeline() -> None:
    assert gathered(loop, {"dp": 4}) == {"options": Options(prompts=8, dp=4)}
    assert gathered(loop, {"lag": 0}) == {"lag": 0}


def test_the_plan_keeps_them_flat_as_plain_values() -> None:
    kept = loop(Options(prompts=4)).graph.parameters
    assert kept == {"prompts": 4, "dp": 2, "note": "", "lag": 0}
    assert {type(value) for value in kept.values()} == {int, str}


def test_a_loss_is_one_value() -> None:
    class nothing(Loss[Options, Options]):  # type: ignore[type-var]  # noqa: N801
        coef: float = 1.0

    def with_loss(loss: object = nothing()) -> None: ...

    assert groups_of(with_loss) == {}


def test_two_parameters_of_one_name_are_refused() -> None:
    def twice(options: Options = Options(), note: str = "") -> None: ...

    with pytest.raises(UsageError, match="`twice` has two parameters `note`, one of them in its `note`"):
        flat_parameters(twice)


def test_counts_of_two_things_in_the_options_do_not_add_up() -> None:
    @pipeline
    def adds(options: Options = Options()) -> None:
        s = Start(prompts=options.prompts + options.dp)
        s.finish(s.rows())

    with pytest.raises(CheckFailed) as refused:
        adds()
    (found,) = refused.value.diagnostics
    assert (found.code, found.message) == ("RLF016", "prompts + ranks: counts of two things do not add up")
    lines = Path(__file__).read_text().splitlines()
    assert [lines[label.place.line - 1].split(":")[0].strip() for label in found.related] == ["prompts", "dp"]


def messages(options: Options, lag: int = 0) -> list[str]:
    with pytest.raises(CheckFailed) as refused:
        loop(options, lag)
    return [found.message for found in refused.value.diagnostics]


def test_an_option_that_counts_nothing_is_told_once_and_another_one_too() -> None:
    assert messages(Options(dp=0)) == ["`dp` of `Torch` is an integer of at least 1, got 0"]
    assert sorted(messages(Options(dp=0, prompts=0))) == [
        "`dp` of `Torch` is an integer of at least 1, got 0",
        "`prompts` of `form_batch` is an integer of at least 1, got 0",
    ]


# --- the command line -----------------------------------------------------------------------------------------------------------------
RLOO = str(Path(__file__).parents[3] / "pipelines" / "rloo.py")


def plan_of(*flags: str) -> Plan:
    command = command_of(RLOO)
    return command.plan(parsed(command, flags))


def test_options_are_flags() -> None:
    plan = plan_of("--prompts", "4", "--reward", "operators.reward:exact_match")
    assert plan.graph.parameters["prompts"] == 4
    assert plan.graph.parameters["reward"] == {"$ref": "operators.reward:exact_match"}
    assert "exact_match" in {node.name for node in plan.graph.nodes}


def test_flags_are_told_as_given() -> None:
    command = command_of(RLOO)
    flags = ["--prompts", "4", "--reward", "operators.reward:exact_match"]
    assert list(command.as_told(parsed(command, flags), ()).flags) == flags


def test_a_flag_helps_with_the_text_of_its_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", RLOO, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--prompts INT prompts a batch [default: 32]" in shown


def test_a_message_in_a_shared_part_names_the_line_of_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", RLOO, "--dp", "0", "--format", "json"]) == 3
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["code"] == "RLF015"
    assert main(["check", RLOO, "--dp", "0"]) == 3
    said = capsys.readouterr().err
    assert "--> parts.py:" in said
    assert "actor, engine, policy = workers(options)\n   |                             ---------------- called from here" in said
