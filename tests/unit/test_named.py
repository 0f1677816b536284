"""What a flag names: functions and losses, with options of their own, and what is said of those that are none."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from operators.advantage import grpo, rloo
from operators.loss import entropy_bonus, ppo_clip
from rlflow.cli import main
from rlflow.errors import UsageError
from rlflow.flags import command_of, parsed
from rlflow.named import function_of, loss_of, name_of

GRPO = str(Path(__file__).parents[2] / "pipelines" / "grpo.py")


def test_a_function_by_its_name() -> None:
    assert function_of("operators.advantage:rloo", "--x") is rloo


def test_a_function_with_options_is_a_partial_of_it() -> None:
    found = function_of("operators.advantage:grpo(scale_by_std=False, epsilon=1e-3)", "--x")
    assert isinstance(found, functools.partial)
    assert (found.func, found.args, found.keywords) == (grpo, (), {"scale_by_std": False, "epsilon": 0.001})


@pytest.mark.parametrize(
    ("said", "loss"),
    [
        ("operators.loss:ppo_clip", ppo_clip(0.2, 0.2)),
        ("operators.loss:ppo_clip()", ppo_clip(0.2, 0.2)),
        ("operators.loss:ppo_clip(0.1, clip_high=0.3)", ppo_clip(0.1, 0.3)),
        ("operators.loss:ppo_clip(aggregate='seq-mean-token-sum')", ppo_clip(aggregate="seq-mean-token-sum")),
        ("operators.loss:entropy_bonus(coef=-1)", entropy_bonus(-1)),
    ],
)
def test_a_loss_with_its_options(said: str, loss: object) -> None:
    assert loss_of(said, "--x") == loss


def test_a_loss_that_a_module_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holds_n.py").write_text("from operators.loss import ppo_clip\nMINE = ppo_clip(0.1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert loss_of("holds_n:MINE", "--x") == ppo_clip(0.1)
    with pytest.raises(UsageError, match="--x: `holds_n:MINE` is a ppo_clip, no class of losses"):
        loss_of("holds_n:MINE(0.2)", "--x")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("ppo_clip", "--x: 'ppo_clip' is no module:function, e.g. operators.loss:ppo_clip"),
        ("operators.loss:ppo_clop", "--x: cannot find `ppo_clop` in module `operators.loss`"),
        ("operators.advantage:rloo", "--x: `operators.advantage:rloo` is a function, no class of losses"),
        ("operators.loss:ppo_clip(clip=1)", "--x: got an unexpected keyword argument 'clip'; it is operators.loss:ppo_clip(clip_low=0.2"),
        ("operators.loss:kl_penalty", "--x: missing a required argument: 'beta'; it is operators.loss:kl_penalty(beta"),
        ("operators.loss:ppo_clip(open('x'))", "--x: (open('x')) holds no options: give literals"),
        ("operators.loss:ppo_clip(0.2", "--x: (0.2 holds no options: give literals"),
        ("operators.loss:ppo_clip(0.2)(0.3)", "--x: (0.2)(0.3) holds no options: give literals"),
    ],
)
def test_what_names_no_loss(said: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        loss_of(said, "--x")
    assert str(refused.value).startswith(why)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("operators.loss:ppo_clip", "--x: `operators.loss:ppo_clip` is a type, no function of operators"),
        (
            "operators.advantage:grpo(False)",
            "--x: name the options of `operators.advantage:grpo`, as in operators.advantage:grpo(option=False)",
        ),
        ("operators.advantage:grpo(scale=1)", "--x: got an unexpected keyword argument 'scale'; it is operators.advantage:grpo("),
    ],
)
def test_what_names_no_function(said: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        function_of(said, "--x")
    assert str(refused.value).startswith(why)


def test_a_name_is_that_of_the_package_which_hands_it_on() -> None:
    assert (rloo.__module__, name_of(rloo)) == ("operators.advantage.group_relative", "operators.advantage:rloo")
    assert name_of(functools.partial(grpo, scale_by_std=False)) == "operators.advantage:grpo(scale_by_std=False)"
    assert name_of(ppo_clip(0.1)) == "operators.loss:ppo_clip(clip_low=0.1)"


def test_names_lead_back() -> None:
    assert loss_of(name_of(ppo_clip(0.1, 0.3)), "--x") == ppo_clip(0.1, 0.3)
    found = function_of(name_of(functools.partial(grpo, scale_by_std=False)), "--x")
    assert (found.func, found.keywords) == (grpo, {"scale_by_std": False})


def test_a_file_is_told_by_the_name_of_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^--x: mine\.py is a file; name its module: mine:halved$"):
        function_of("mine.py:halved", "--x")
    with pytest.raises(UsageError, match=r"^--x: \./mine\.py is a file; name its module: mine:plain$"):
        loss_of("./mine.py:plain(0.2)", "--x")
    with pytest.raises(UsageError, match=rf"name its module: mine:halved, with PYTHONPATH={tmp_path / 'deep'}$"):
        function_of(str(tmp_path / "deep" / "mine.py") + ":halved", "--x")


def test_a_file_of_a_package_is_told_by_the_name_in_it() -> None:
    with pytest.raises(UsageError, match=r"name its module: operators\.rows:pad"):
        function_of(f"{Path(GRPO).parent.parent}/operators/rows.py:pad", "--x")


# --- in a pipeline --------------------------------------------------------------------------------------------------------------------
def test_a_loss_swaps_in_with_one_flag() -> None:
    command = command_of(GRPO)
    plan = command.plan(parsed(command, ["--loss", "operators.loss:ppo_clip(0.1, 0.3)"]))
    (train,) = (node for node in plan.graph.nodes if node.name == "actor.train")
    assert {name: train.losses[0].options[name] for name in ("clip_low", "clip_high")} == {"clip_low": 0.1, "clip_high": 0.3}


def test_flags_with_options_are_told_as_given() -> None:
    command = command_of(GRPO)
    flags = ["--advantage", "operators.advantage:grpo(scale_by_std=False)", "--loss", "operators.loss:ppo_clip(0.1)"]
    assert list(command.as_told(parsed(command, flags), ()).flags) == flags


def test_a_swap_takes_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--swap", "grpo=operators.advantage:grpo(scale_by_std=False)"]) == 0
    assert main(["check", GRPO, "--swap", "grpo=operators.advantage:grpo(scale=1)"]) == 2
    assert "unexpected keyword argument 'scale'" in capsys.readouterr().err


def test_a_loss_of_another_forward_is_refused_at_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--loss", "operators.loss:value_clip"]) == 3
    assert "error[RLF001]: the forward of `actor.train` has no field `values`, which `value_clip` reads" in capsys.readouterr().err


def test_help_shows_a_loss_as_a_flag_would_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GRPO, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "--loss STR module:class [default: operators.loss:ppo_clip]" in shown
