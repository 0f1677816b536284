"""What changes between two plans: by key, attribute by attribute; nothing where nothing does."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_loops import penalised
from vocabulary import exact_match, rloo

from rlflow.cli import main
from rlflow.show.diff import Change, Diff, Row, as_text, diff

GRPO = str(Path(__file__).parents[3] / "pipelines" / "grpo.py")


def strict_match(text: Any, answer: Any, mask: Any, weight: float) -> Any:
    return exact_match(text, answer, mask)


def names(rows: tuple[Row, ...]) -> list[str]:
    return [row.name for row in rows]


def changes(found: Diff, section: str, name: str) -> tuple[Change, ...]:
    return next(row.changes for row in found.sections[section].changed if row.name == name)


def test_a_plan_does_not_differ_from_itself() -> None:
    found = diff(penalised(), penalised())
    assert (found.same, found.sections, as_text(found)) == (True, {}, "penalised → penalised: no difference")


def test_a_penalty_brings_a_model_a_field_and_two_hops() -> None:
    found = diff(penalised(kl=0.0), penalised(kl=0.1))
    assert names(found.sections["edges"].added) == ["engine.rollout → reference", "reference → actor"]
    assert changes(found, "parameters", "kl") == (Change(what="value", a=0.0, b=0.1),)
    assert changes(found, "operators", "reference.log_probs") == (Change(what="dropped", a=True, b=False),)
    assert changes(found, "operators", "actor.train") == (
        Change(what="reads", a=[], b=["ref"]),
        Change(what="frees", a=[], b=["ref"]),
        Change(what="losses.kl_penalty", a="off", b={"beta": 0.1}),
    )
    assert changes(found, "fields", "reference.log_probs.ref") == (
        Change(what="readers", a=[], b=["actor.train"]),
        Change(what="dies", a=None, b="actor.train"),
    )


def test_and_the_other_way_round_they_go() -> None:
    assert names(diff(penalised(kl=0.1), penalised()).sections["edges"].removed) == ["engine.rollout → reference", "reference → actor"]


def test_a_field_of_another_writer_is_the_same_field() -> None:
    found = diff(penalised(), penalised().replace("grpo", rloo))
    assert (names(found.sections["operators"].removed), names(found.sections["operators"].added)) == (["grpo"], ["rloo"])
    assert changes(found, "fields", "grpo.advantages") == (Change(what="writer", a="grpo", b="rloo"),)
    assert not found.sections["fields"].added


def test_workers_are_named_not_numbered() -> None:
    found = diff(penalised(dp=1), penalised(dp=2))
    assert changes(found, "workers", "actor")[0] == Change(what="dp", a=1, b=2)
    assert "$worker" not in as_text(found)


def test_functions_with_options_are_told_by_name_and_option() -> None:
    lines = as_text(diff(penalised(), penalised(reward=functools.partial(strict_match, weight=0.5)))).splitlines()
    assert "  ~ reward: vocabulary:exact_match → (function=test_diff:strict_match, weight=0.5)" in lines


def test_as_text() -> None:
    lines = as_text(diff(penalised(kl=0.0), penalised(kl=0.1))).splitlines()
    assert lines[:4] == ["penalised → penalised", "", "parameters", "  ~ kl: 0.0 → 0.1"]
    assert "  + reference → actor: ref: 2048*S - 2048 bytes a step" in lines
    assert "  ~ actor.train: reads + ref; frees + ref; losses.kl_penalty off → (beta=0.1)" in lines


def test_two_parameter_sets_of_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", GRPO, GRPO, "--b.kl", "0.1", "--a.swap", "grpo=operators.advantage:rloo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{GRPO} --swap grpo=operators.advantage:rloo → {GRPO} --kl 0.1"
    assert "  + reference: Torch, 1 rank" in lines


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", GRPO, GRPO, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": GRPO, "b": GRPO, "same": True, "sections": {}}


LOOP = """from beside_d import TASK
from operators.dataset import dataset
from rlflow import pipeline


@pipeline
def loop() -> None:
    dataset(TASK, tokenizer="tiny")
"""


@pytest.mark.parametrize("inside", ["old", "new", "."])
def test_the_files_of_two_checkouts_are_two_pipelines(inside: str, tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "checkout_d.py").write_text(LOOP)
        (tmp_path / folder / "beside_d.py").write_text(f"TASK = '{folder}.parquet'\n")
    command = [sys.executable, "-m", "rlflow.cli", "diff", *(str(tmp_path / folder / "checkout_d.py") for folder in ("old", "new"))]
    done = subprocess.run(command, cwd=tmp_path / inside, capture_output=True, text=True, timeout=60, check=True)
    assert "  ~ dataset: options.path old.parquet → new.parquet" in done.stdout


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([], 2, "say first which pipeline: rlflow diff A.py B.py"),
        ([GRPO], 2, "say first which two pipelines: rlflow diff A.py B.py"),
        ([GRPO, GRPO, "--kl", "0.1"], 2, "--kl"),
        ([GRPO, GRPO, "--b.prompts", "0"], 3, "RLF015"),
        ([GRPO, GRPO, "--b.swap", "grpo=operators.advantage:gae"], 3, "RLF009"),
    ],
)
def test_what_cannot_be_compared(argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *argv]) == code
    assert said in capsys.readouterr().err


def test_no_line_is_wider_than_a_terminal() -> None:
    wide = functools.partial(penalised, kl=0.1, dp=2)
    assert max(map(len, as_text(diff(penalised(), wide())).splitlines())) <= 138
