"""The command line: exit codes, and errors that name the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cyclopts import Parameter

from rlflow.cli import main
from rlflow.commands import COMMANDS
from rlflow.flags import options_of
from rlflow.run.record import Options, Record, Told

GRPO = str(Path(__file__).parents[2] / "pipelines" / "grpo.py")


def test_check_accepts_the_shipped_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("grpo", "ppo", "multiturn"):
        assert main(["check", str(Path(GRPO).with_name(f"{name}.py"))]) == 0
        assert f"{name}: " in capsys.readouterr().out


def test_parameters_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--prompts", "30", "--dp", "4", "--advantage", "operators.advantage:rloo"]) == 0
    assert main(["check", GRPO, "--help"]) == 0
    assert "--group-size" in capsys.readouterr().out


def test_a_function_is_a_flag_where_it_is_none_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--held-out", "operators.reward:exact_match"]) == 0
    assert main(["check", GRPO, "--held-out", "operators.reward:exact_mach"]) == 2
    assert "--held-out: cannot find `exact_mach`" in capsys.readouterr().err


def test_a_function_that_returns_a_plan_is_a_pipeline_with_its_own_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small_grpo.py"
    file.write_text(
        "from pipelines.grpo import grpo\nfrom rlflow import Plan\n\n\n"
        "def small(dp: int = 1) -> Plan:\n    return grpo(prompts=4, group_size=2, dp=dp)\n\n\ndef _hidden() -> Plan: ...\n"
    )
    assert main(["check", str(file), "--dp", "2"]) == 0
    assert main(["check", str(file), "--dp", "0"]) == 3
    assert "RLF015" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--queue", "--oversample", "--epochs"])
def test_counts_of_the_schedule_are_not_negative(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", GRPO, flag, "-1"]) == 2
    assert "Must be >= 0" in capsys.readouterr().err


def test_a_queue_that_lags_further_than_max_lag_is_refused_with_the_flag_that_is_legal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--max-lag", "1", "--queue", "1"]) == 0
    assert main(["check", GRPO, "--max-lag", "1", "--queue", "2"]) == 3
    assert "0 to 1 are legal: `--queue 1`, or `max_lag=2`" in capsys.readouterr().err


def test_pass_rates_that_are_no_bounds_are_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", GRPO, "--root", str(tmp_path), "--pass-rate", "0.9", "0.1"]) == 2
    assert "give the lowest and the highest rate that is sampled" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_swapping_in_gae_without_values_is_refused_with_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", GRPO, "--swap", "grpo=operators.advantage:gae"]) == 3
    error = capsys.readouterr().err
    assert "error[RLF009]: `gae` cannot replace `grpo`: nothing gives its `values`" in error
    assert "use a pipeline that makes `values`" in error


def test_a_file_of_several_pipelines_wants_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "twin_h.py"
    loop = "@pipeline\ndef {}() -> None: ...\n\n\n"
    file.write_text("from rlflow import pipeline\n\n\n" + loop.format("twin_h") + loop.format("other"))
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err == f"rlflow: {file} has 2 pipelines: write {file}:twin_h or {file}:other\n"
    assert main(["check", f"{file}:other"]) == 0
    assert capsys.readouterr().out.startswith("other: 0 operators, 0 feedbacks, no error (")


def test_a_swap_says_what_it_was_bound_to(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tagged_h.py").write_text(
        "from operators.fields import ResponseMask, TokenRewards, Uid, VersionTag\nfrom operators.records import Advantage\n"
        "from rlflow import operator\n\n\n@operator(per='group')\ndef fresh_first(\n    token_level_rewards: TokenRewards, "
        "response_mask: ResponseMask, uid: Uid, version_tag: VersionTag\n) -> Advantage: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", GRPO, "--swap", "grpo=tagged_h:fresh_first"]) == 0
    said = capsys.readouterr().err
    line = next(i for i, text in enumerate(Path(GRPO).read_text().splitlines(), 1) if " = form_batch(" in text)
    assert said == (
        "rlflow: `fresh_first` in place of `grpo`: token_level_rewards, response_mask, uid from the call; "
        f"version_tag from `form_batch` (grpo.py:{line})\n"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run"], "say first which pipeline"),
        (["run", "--steps", "3", GRPO], "rlflow run FILE.py [flags]"),
        (["check", GRPO, "--swap", "grpo=os:getcwd"], "no function of operators"),
        (["run", GRPO, "--pool-mb", "0"], "--pool-mb 0: give at least 1"),
        (["run", "nowhere.py"], "nowhere.py is not a file"),
        (["run", GRPO, "--promts", "3"], "--promts"),
        (["run", GRPO, "--prompts", "many"], "many"),
        (["run", GRPO, "--steps", "0"], "--steps 0: give at least 1"),
        (["run", GRPO, "--name", "../up"], "'../up' is not a plain folder name"),
        (["check", GRPO, "--swap", "grpo"], "NAME=module:function"),
        (["check", GRPO, "--swap", "gpro=operators.advantage:rloo"], "grpo"),
        (["check", GRPO, "--swap", "grpo=operators.advantage:rlo"], "rlo"),
        (["frobnicate"], "frobnicate"),
        (["check", GRPO, "--dump", "inferr"], "the passes are trace, freeze, own, infer, version, live, order, place"),
        (["check", GRPO, "--dump", "infer", "--format", "json"], "leave out --format json"),
        (["explain", GRPO, "--sizes", "S"], "'S' is no LETTER=NUMBER"),
        (["explain", GRPO, "--sizes", "S=1024"], "depend on Q, text: give Q=..., text=..."),
        (["explain", "RLF202", "--json"], "takes no flags"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_says_why(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    extra = ["--root", str(tmp_path)] if argv[:2] == ["run", GRPO] else []
    assert main([*argv, *extra]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--swap=grpo=raising_h:fn", "--advantage=raising_h:fn"])
def test_a_module_that_raises_is_a_wrong_command_line(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising_h.py").write_text("print('noise')\nraise ValueError('no such luck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", GRPO, flag, "--format", "json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "ValueError: no such luck" in said.err


def test_what_a_pipeline_raises_has_only_frames_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "raises_h.py"
    file.write_text("from rlflow import pipeline\n\n\n@pipeline\ndef loop() -> None:\n    raise ValueError('no such luck')\n")
    assert main(["check", str(file)]) == 2
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines() if "File " in line] == [f'  File "{file}"']


def test_a_number_that_would_be_cut_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--prompts", "1.5"]) == 2
    assert "--prompts: 1.5 is no whole number" in capsys.readouterr().err
    assert main(["check", GRPO, "--prompts", "64.0"]) == 0


def test_a_command_is_written_as_it_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given_h.py").write_text(
        "import functools\nfrom operators.advantage import AdvantageFn, grpo, rloo\nfrom rlflow import pipeline\n"
        "mine = functools.partial(rloo)\n\n\n@pipeline\n"
        "def loop(fn: AdvantageFn = grpo, on: bool = True, sizes: tuple[int, ...] = ()) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = str(tmp_path / "given_h.py")
    flags = ["--fn", "given_h:mine", "--no-on", "--sizes", "3", "--sizes", "4"]
    assert main(["diff", file, file, *(flag.replace("--", "--b.") if flag.startswith("--") else flag for flag in flags)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{file} → {file} {' '.join(flags)}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_flag_of_a_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [GRPO, GRPO] if name == "diff" else [str(tmp_path)] if name == "resume" else [GRPO]
    record = Record(pipeline={}, run=Options(), told=Told(cwd=str(tmp_path), file=GRPO, pipeline="grpo"))
    (tmp_path / "parameters.json").write_bytes(msgspec.json.encode(record, enc_hook=str))
    for argv in ([name, "--help"], [name, *files, "--help"]):
        assert main(argv) == 0
        shown = capsys.readouterr().out
        assert f"Usage: rlflow {name} " in shown
        for option in options_of(COMMANDS[name]):
            (told,) = (part for part in option.annotation.__metadata__ if isinstance(part, Parameter))
            flag = told.name[0] if told.name else f"--{option.name.replace('_', '-')}"
            assert f" {flag} " in shown
            assert told.help


def test_the_front_page_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in COMMANDS)


def test_a_check_loads_no_torch() -> None:
    code = f"import sys; from rlflow.cli import main; main(['check', {GRPO!r}]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_explain_prints_where_a_field_dies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", GRPO]) == 0
    text = capsys.readouterr().out
    assert "advantages" in text
    assert "f32" in text


def test_explain_prints_the_page_of_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "RLF202"]) == 0
    assert "RLF202" in capsys.readouterr().out
    assert main(["explain", "RLF999"]) == 2
