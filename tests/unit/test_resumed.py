"""From a run's folder back to its pipeline: the flags it had, and what has changed since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from operators.advantage import rloo
from rlflow.compile.plan import Plan
from rlflow.errors import UsageError
from rlflow.flags import command_of, commands_of
from rlflow.resumed import difference, folder_of, pipeline_of, swapped
from rlflow.run.digests import digests
from rlflow.run.ledger import Ledger
from rlflow.run.record import Options, Record, Told, plan_file, plan_of, replace_plan

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo.py"
FLAGS = {"prompts": 4, "advantage": rloo, "kl": 0.5}


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., Path]:
    """`run_of(FILE, {"kl": 0.1})`: the folder that `rlflow run FILE --kl 0.1` would leave."""

    def make(file: Path, given: dict[str, Any], swap: tuple[str, ...] = ()) -> Path:
        command, folder = command_of(str(file)), tmp_path / "one"
        record = Record(pipeline={}, run=Options(steps=7), told=command.as_told(given, swap), modules=command.modules)
        folder.mkdir()
        (folder / "parameters.json").write_bytes(msgspec.json.encode(record, enc_hook=str))
        return folder

    return make


def test_a_run_gives_back_its_pipeline_with_the_flags_it_had(run_of: Callable[..., Path]) -> None:
    with pipeline_of(str(run_of(GRPO, FLAGS, ("grpo=operators.advantage:rloo",)))) as found:
        assert found.before == FLAGS
        assert found.record.run.steps == 7
        assert found.told_before.swap == ("grpo=operators.advantage:rloo",)
        assert (found.parameters["prompts"].default, found.parameters["group_size"].default) == (4, 8)


def test_relative_paths_are_those_of_the_folder_it_was_started_in(
    run_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_of(GRPO, {})
    monkeypatch.chdir(tmp_path)
    with pipeline_of(str(folder)):
        assert Path.cwd() != tmp_path
    assert Path.cwd() == tmp_path


def test_what_is_gone_is_named(run_of: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "gone_h.py"
    file.write_text("from rlflow import pipeline\n\n\n@pipeline\ndef gone_h() -> None: ...\n")
    folder = run_of(file, {})
    file.unlink()
    with pytest.raises(UsageError, match=f"{folder} runs `gone_h` of {file}, which is gone: put it back"), pipeline_of(str(folder)):
        pass


def test_a_flag_that_the_pipeline_does_not_take_any_more_is_named(run_of: Callable[..., Path], tmp_path: Path) -> None:
    folder = run_of(GRPO, {"prompts": 4})
    record = Record.read(folder)
    assert record.told is not None
    told = Told(cwd=record.told.cwd, file=record.told.file, pipeline="grpo", flags=("--promts", "4"))
    (folder / "parameters.json").write_bytes(msgspec.json.encode(Record(pipeline={}, run=record.run, told=told), enc_hook=str))
    said = r"was started with --promts 4, which `grpo` of .* does not take any more: Unknown option: --promts\. Did you mean --prompts\?"
    with pytest.raises(UsageError, match=said), pipeline_of(str(folder)):
        pass


@pytest.mark.parametrize(("name", "content"), [("parameters.json", b"{}"), ("parameters.json", b"[1"), ("other", b"{}")])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"is not the folder of a run|is not what a run writes"):
        Record.read(tmp_path)


def test_a_run_is_named_by_its_folder_or_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert folder_of("one") == folder_of("runs/one") == folder_of(str(tmp_path / "runs" / "one")) == tmp_path / "runs" / "one"


def test_a_name_is_looked_for_in_the_root(run_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(GRPO, FLAGS)
    monkeypatch.chdir(tmp_path)
    with pipeline_of("one", tmp_path, ("--steps", "9")) as found:
        assert found.folder == folder
        assert "rlflow resume one --steps 9 --accept" in found.way_to_accept


def test_another_group_size_is_refused_by_its_flag(run_of: Callable[..., Path]) -> None:
    folder = run_of(GRPO, FLAGS)
    Ledger.create(folder).close()
    (folder / "plan.json").write_bytes(command_of(str(GRPO)).plan(FLAGS).to_json())
    with pipeline_of(str(folder)) as found:
        found.refuse_other_group_size(found.plan(FLAGS), {})
        with pytest.raises(UsageError, match=r"^--group-size 16: the groups of .* have 8 trajectories each"):
            found.refuse_other_group_size(found.plan({**FLAGS, "group_size": 16}), {"group_size": 16, "prompts": 4})
        given = {"prompts": 16, "group_size": 16}
        with pytest.raises(UsageError, match=r"^--group-size 16: "):  # not the other flag of that value
            found.refuse_other_group_size(found.plan({**FLAGS, **given}), given)


SIZES = """
from pipelines.grpo import grpo
from rlflow.compile.plan import Plan

def sizes_h(pairs: int = 4, alone: bool = False, less: int = 0) -> Plan:
    return grpo(group_size=(1 if alone else 2) * pairs - less)
"""


def test_the_flag_is_the_one_without_which_groups_are_what_they_were(run_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "sizes_h.py").write_text(SIZES)
    folder = run_of(tmp_path / "sizes_h.py", {})
    Ledger.create(folder).close()
    (folder / "plan.json").write_bytes(command_of(str(tmp_path / "sizes_h.py")).plan({}).to_json())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"pairs": 4, "alone": True}, "--alone"),
        ({"pairs": 8, "less": 0}, "--pairs 8"),  # it is half of n
        ({"pairs": 8, "less": 1}, "n=15"),  # without either of them it is another one still
    ]
    with pipeline_of(str(folder)) as found:
        for given, said in cases:
            with pytest.raises(UsageError, match=f"^{said}: the groups of .* have 8 trajectories each"):
                found.refuse_other_group_size(found.plan(given), given)


def test_a_changed_body_is_told_by_its_file_and_operators(run_of: Callable[..., Path]) -> None:
    folder = run_of(GRPO, FLAGS)
    plan = command_of(str(GRPO)).plan(FLAGS)
    record = Record.read(folder)
    assert record.told is not None
    known = digests(plan.graph) | {"operators.batching:dispatch": "another", "operators.batching:form_batch": "another"}
    known.pop("operators.dataset:dataset")  # an older run had noted nothing of it
    (folder / "parameters.json").write_bytes(
        msgspec.json.encode(Record(pipeline={}, run=record.run, told=record.told, operators=known), enc_hook=str)
    )
    with pipeline_of(str(folder)) as found:
        assert list(found.changed_operators(plan)) == [
            f"warning: operators.batching has changed since {folder} was at work last, and it calls `dispatch`, `form_batch` of it"
        ]


def test_a_swap_of_the_same_name_takes_the_place_of_the_first() -> None:
    assert swapped(("grpo=a:b", "pad=c:d"), ("grpo=e:f",)) == ("grpo=e:f", "pad=c:d")


def test_a_plan_read_back_differs_from_the_same_pipeline_in_nothing(tmp_path: Path) -> None:
    command = command_of(str(GRPO))
    (tmp_path / "plan.json").write_bytes(command.plan(FLAGS).to_json())
    assert difference(plan_of(tmp_path / "plan.json"), command.plan(FLAGS), ("then", "now")) == ""


def plans_of(folder: Path, name: str, old: str, new: str) -> tuple[Plan, Plan]:
    """Of the shipped pipeline, and of it with one text in place of another."""
    texts = (GRPO.read_text(), GRPO.read_text().replace(old, new))
    assert texts[0] != texts[1]
    files = [folder / part / f"{name}.py" for part in ("then", "now")]
    for file, text in zip(files, texts, strict=True):
        file.parent.mkdir()
        file.write_text(text)
    then, now = commands_of(*map(str, files))
    return then.plan({}), now.plan({})


def test_a_line_more_above_a_pipeline_is_no_difference(tmp_path: Path) -> None:
    then, now = plans_of(tmp_path, "lines_h", "@pipeline", "# why\n\n@pipeline")
    assert then.graph.nodes[0].at.line + 2 == now.graph.nodes[0].at.line
    assert difference(then, now, ("then", "now")) == ""


def test_another_option_of_a_call_is_a_difference(tmp_path: Path) -> None:
    shown = difference(*plans_of(tmp_path, "option_h", "entropy_bonus(entropy)", "entropy_bonus(2 * entropy)"), ("then", "now"))
    assert shown.startswith("then → now\n\noperators\n  ~ ")
    assert "0.1 → 0.2" in shown


def test_a_difference_that_no_table_shows_is_shown_by_its_place() -> None:
    plan = command_of(str(GRPO)).plan({})
    node = plan.graph.nodes[0]
    other = msgspec.structs.replace(node, order=(*node.order, "more"))
    graph = msgspec.structs.replace(plan.graph, nodes=(other, *plan.graph.nodes[1:]))
    assert "nodes.0.order: [" in difference(plan, msgspec.structs.replace(plan, graph=graph), ("then", "now"))


def test_a_plan_of_a_timeline_that_never_began_is_not_what_the_run_ran(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"first")
    replace_plan(tmp_path, 0, b"first")
    assert plan_file(tmp_path, 0) == tmp_path / "plan.json"
    for plan in (b"second", b"third"):  # killed before timeline 1 began, twice
        replace_plan(tmp_path, 0, plan)
        (tmp_path / "plan.json").write_bytes(plan)
        assert plan_file(tmp_path, 0).read_bytes() == b"first"
    assert plan_file(tmp_path, 1).read_bytes() == b"third"
