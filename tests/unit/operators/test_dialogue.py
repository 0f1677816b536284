"""What an engine holds of an episode: one that misbehaves costs one trajectory, by name and in time."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted

from operators import lanes
from operators.dialogue import Dialogue, EnvironmentLimits
from operators.environment import Environment, HigherLower
from operators.models import tokenizer_of
from rlflow.errors import DataError, OperatorError, WaitTimeout
from rlflow.measure import collected

TOKENIZER = tokenizer_of("tiny")
SHORT = EnvironmentLimits(reset_s=0.2, step_s=0.2, resets=2)
ISOLATED = EnvironmentLimits(reset_s=5, step_s=0.5, resets=1, isolated=True)


@pytest.fixture(autouse=True)
def _little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "GRACE_S", 0.3)


def dialogue(environment: Environment, limits: EnvironmentLimits = SHORT, answer: str = "6") -> Dialogue:
    return Dialogue(environment, TOKENIZER, "guess 0-9: ", answer, seed=3, place="trajectory 5.2", limits=limits)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


def fails(talk: Dialogue, kind: type[Exception], message: str) -> None:
    """What the model says next has no reply."""
    with pytest.raises(kind, match=message):
        talk.reply("3")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "calls"
    file.touch()
    return file


def calls(log: Path) -> list[str]:
    return [line.rpartition(" ")[0] for line in log.read_text().splitlines()]


def test_a_reply_comes_back_as_tokens_until_the_episode_is_over() -> None:
    with dialogue(HigherLower()) as talk:
        assert (talk.opening, talk.reply("3"), talk.reply("6")) == ([], ids(" higher\n"), None)
        assert (talk.turns, talk.reward) == (2, 1.0)


def test_what_the_environment_says_first_comes_back_as_tokens_and_rewards_add_up() -> None:
    with dialogue(Scripted(script=("reward:0.5", "reward:-0.25", "end:1"), opening="begin: ")) as talk:
        assert talk.opening == ids("begin: ")
        assert [talk.reply("a") is None for _ in range(3)] == [False, False, True]
        assert talk.reward == 1.25


def test_a_state_is_a_text() -> None:
    with dialogue(Scripted(script=("return:state",))) as talk:
        fails(talk, DataError, "a state is named by a text, or None")


def test_an_episode_is_closed_and_its_lane_serves_the_next_one(log: Path) -> None:
    for _ in range(2):
        with dialogue(Scripted(log=str(log))) as talk:
            talk.reply("a")
            thread = talk._lane.thread  # type: ignore[union-attr]
        assert thread.is_alive()
    assert calls(log) == ["reset 6 3", "step a", "close"] * 2
    assert talk._lane is None


# --- what is no reply -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("5", "is 5; return Reply(text, reward, done, state)"),
        ("text", "is 'up'; return Reply(text, reward, done, state)"),
        ("number", "is Reply(text=5, reward=0.0, done=False, state=None); return Reply(text, reward, done, state)"),
        ("empty", "is Reply(text='', reward=0.0, done=False, state=None); say something, or end the episode with done=True"),
        ("nan", "is Reply(text='up', reward=nan, done=False, state=None); a reward is a finite number"),
    ],
)
def test_a_reply_that_is_none_names_the_environment_the_turn_and_the_trajectory(reply: str, message: str) -> None:
    with dialogue(Scripted(script=(f"return:{reply}",))) as talk:
        fails(talk, DataError, re.escape(f"trajectory 5.2: Scripted.step of turn 1, '3' {message}"))


def test_a_reply_outside_the_alphabet_names_the_characters() -> None:
    with dialogue(Scripted(script=("say:é世",))) as talk:
        fails(talk, DataError, r"trajectory 5\.2: Scripted\.step of turn 1, '3' is 'é世': the tokenizer has no token for")


# --- what raises ----------------------------------------------------------------------------------------------------------------------
def test_a_step_that_raises_is_named_with_the_line_and_not_tried_again(log: Path) -> None:
    with dialogue(Scripted(script=("say:a", "raise:it broke"), log=str(log))) as talk:
        talk.reply("3")
        fails(talk, OperatorError, r"trajectory 5\.2: Scripted\.step of turn 2, '3' raised RuntimeError: it broke \(.*scripted\.py:\d+\)")
    assert calls(log) == ["reset 6 3", "step 3", "step 3", "close"]


def test_a_reset_that_raises_is_tried_again_and_counted(log: Path) -> None:
    collected()
    with dialogue(Scripted(resets=("raise:not yet", ""), log=str(log))) as talk:
        assert talk.reply("3") == ids("more\n")
    assert calls(log) == ["reset 6 3", "reset 6 3", "step 3", "close"]
    assert collected() == {"environment/resets_retried": 1.0}


def test_resets_are_tried_so_often_and_no_more(log: Path) -> None:
    with pytest.raises(OperatorError, match=r"trajectory 5\.2: Scripted\.reset of the prompt 'guess 0-9: ' raised RuntimeError: never"):
        dialogue(Scripted(resets=("raise:never",), log=str(log)))
    assert calls(log) == ["reset 6 3"] * 2


def test_a_row_that_the_environment_refuses_is_not_tried_again() -> None:
    collected()
    with pytest.raises(OperatorError, match=r"trajectory 5\.2: HigherLower\.reset of .* raised DataError: HigherLower needs"):
        dialogue(HigherLower(), answer="six")
    assert collected() == {}


def test_what_ends_a_thread_is_only_an_error() -> None:
    class Leaving:
        async def reset(self, prompt: str, answer: str, *, seed: int) -> Any:
            raise SystemExit(3)

    with pytest.raises(OperatorError, match=r"Leaving\.reset of the prompt .* raised SystemExit: 3"):
        dialogue(Leaving())


def test_an_environment_of_plain_functions_is_told_to_be_asynchronous() -> None:
    class Plain:
        def reset(self, prompt: str, answer: str, *, seed: int) -> Any:
            return None

    with pytest.raises(OperatorError, match=r"Plain\.reset of the prompt .* raised TypeError: .*NoneType can't be used in 'await'"):
        dialogue(Plain())


# --- what hangs -----------------------------------------------------------------------------------------------------------------------
def test_a_step_that_waits_too_long_is_cancelled_and_named() -> None:
    before = threading.active_count()
    with dialogue(Scripted(script=("await:60",))) as talk:
        start = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"trajectory 5\.2: Scripted\.step of turn 1, '3' did not return within 0\.2 s$"):
            talk.reply("3")
    assert time.monotonic() - start < 1.5
    assert threading.active_count() <= before + 1


def test_a_step_that_blocks_is_left_behind_and_its_thread_ends_when_it_does() -> None:
    with dialogue(Scripted(script=("block:2",))) as talk:
        thread = talk._lane.thread  # type: ignore[union-attr]
        with pytest.raises(WaitTimeout, match=r"Scripted\.step of turn 1, '3' did not return within 0\.2 s, and cannot be cancelled"):
            talk.reply("3")
    assert thread.is_alive()
    with dialogue(Scripted()) as other:  # nobody else is stopped
        assert other.reply("3") == ids("more\n")
    thread.join(10)
    assert not thread.is_alive()


def test_a_reset_that_hangs_is_tried_again_elsewhere(log: Path) -> None:
    with dialogue(Scripted(resets=("block:2", ""), log=str(log))) as talk:
        assert talk.reply("3") == ids("more\n")
    assert calls(log)[:2] == ["reset 6 3"] * 2


def test_a_close_that_fails_is_told_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with dialogue(Scripted(close="raise:too late")) as talk:
        assert talk.reply("3") == ids("more\n")
    assert "trajectory 5.2: Scripted.close raised RuntimeError: too late" in caplog.text


def test_too_many_threads_that_hang_end_it_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOST_MOST", 1)
    own = lanes._Lanes()
    lane = own.take(isolated=False)
    with pytest.raises(lanes.Hung):
        lane.reset(Scripted(resets=("block:2",)), "", "", 0, 0.1)
    own.discard(lane)
    with pytest.raises(OperatorError, match=r"1 calls of environments hang in threads .* await what waits, or .*isolated=True"):
        own.take(isolated=False)
    lane.thread.join(10)  # type: ignore[attr-defined]
    own.discard(own.take(isolated=False))


# --- in a process of its own ------------------------------------------------------------------------------------------------------------
def test_isolated_episodes_run_elsewhere_one_after_the_other(log: Path) -> None:
    for _ in range(2):
        with dialogue(Scripted(log=str(log)), ISOLATED) as talk:
            assert talk.reply("3") == ids("more\n")
    pids = {line.rpartition(" ")[2] for line in log.read_text().splitlines()}
    assert calls(log) == ["reset 6 3", "step 3", "close"] * 2
    assert len(pids) == 1
    assert pids != {str(threading.main_thread().native_id)}


def test_what_ends_its_process_costs_one_trajectory() -> None:
    with dialogue(Scripted(script=("exit:7",)), ISOLATED) as talk:
        fails(talk, OperatorError, r"trajectory 5\.2: Scripted\.step of turn 1, '3' ended its process")
    with dialogue(Scripted(), ISOLATED) as other:
        assert other.reply("3") == ids("more\n")


def test_what_blocks_its_process_is_killed(log: Path) -> None:
    with dialogue(Scripted(script=("block:60",), log=str(log)), ISOLATED) as talk:
        fails(talk, WaitTimeout, r"Scripted\.step of turn 1, '3' did not return within 0\.5 s")
    pid = int(log.read_text().split()[-1])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


# --- forks ------------------------------------------------------------------------------------------------------------------------------
def test_a_fork_is_another_episode_brought_to_the_same_turn(log: Path) -> None:
    with dialogue(Scripted(script=("echo",), log=str(log))) as talk:
        talk.reply("a")
        talk.reply("b")
        with talk.forked(1) as other:
            assert (other.turns, other.reward) == (1, 1.0)
            assert other.reply("c") == ids("c\n")
        assert (talk.turns, talk.reward) == (2, 2.0)
    assert calls(log) == ["reset 6 3", "step a", "step b", "reset 6 3", "step a", "step c", "close", "close"]


def test_an_environment_that_answers_otherwise_cannot_be_forked(tmp_path: Path) -> None:
    class Moody(Scripted):
        async def reset(self, prompt: str, answer: str, *, seed: int) -> Any:
            count = self.told("reset").count("reset")
            return await Scripted(script=(f"say:{count}",)).reset(prompt, answer, seed=seed)

    with dialogue(Moody(log=str(tmp_path / "calls"))) as talk:
        talk.reply("a")
        with pytest.raises(OperatorError, match=r"trajectory 5\.2: Moody answers turn 1, 'a', in another way when it is played again"):
            talk.forked(1)


@pytest.mark.parametrize("wrong", [{"reset_s": 0.0}, {"step_s": -1.0}, {"resets": 0}])
def test_limits_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="give seconds above 0 and at least one reset"):
        EnvironmentLimits(**wrong)
