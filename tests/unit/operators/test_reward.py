"""Verifiers, the processes that they run in, and where a score lands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Literal

import judging_cases  # beside this file
import psutil
import pytest
import torch

from operators import verifiers
from operators.judging import Verdict, _Patience, score_texts
from operators.reward import exact_match, length_penalty, math_reward, reasoning_gym_reward, shape_rewards, verify
from rlflow.errors import DataError, OperatorError
from rlflow.measure import collected

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


# --- verifiers --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [("7", "7", 1), (" 7\n", "7", 1), ("a  b", "a b", 1), ("ab", "a b", 0), ("77", "7", 0), ("A", "a", 0)],
)
def test_exact_match(response: str, answer: str, score: float) -> None:
    assert verifiers.exact_match(response, answer) == score


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [("7", "7", 1), ("it is 7, not 8", "7", 1), ("8 7", "7", 0), ("-7", "7", 0), ("-7", "-7", 1), ("07", "7", 1), ("none", "7", 0)],
)
def test_first_integer(response: str, answer: str, score: float) -> None:
    assert verifiers.first_integer(response, answer) == score


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("12 * 100 = 1,200.0", "1200", 1),
        ("1200", "1,200", 1),
        ("9-3", "3", 1),
        ("9 - -3", "-3", 1),
        (".5", "0.50", 1),
        ("so 3.", "3", 1),
        ("3 or 4", "3", 0),
        ("12,34", "1234", 0),
        ("none", "3", 0),
    ],
)
def test_last_number(response: str, answer: str, score: float) -> None:
    assert verifiers.last_number(response, answer) == score


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("so it is \\boxed{\\frac{1}{2}}", "1/2", 1),
        ("0.5", "\\frac{1}{2}", 1),
        ("1/2", "$\\frac12$", 1),
        ("I think 72.", "72", 1),
        ("the answer is $x=3$", "3", 1),
        ("73", "72", 0),
        ("no idea", "72", 0),
    ],
)
def test_math_verify(response: str, answer: str, score: float) -> None:
    assert verifiers.math_verify(response, answer) == score


def test_math_verify_refuses_an_answer_that_is_no_mathematics() -> None:
    with pytest.raises(ValueError, match="no expression in the answer"):
        verifiers.math_verify("72", "")


ENTRY = '{"question": "Spell this word backward: sun", "answer": "nus", "metadata": {"source_dataset": "spell_backward", "word": "sun"}}'


@pytest.mark.parametrize(("response", "score"), [("nus", 1), ("I reverse it: <answer>nus</answer>", 1), ("sun", 1 / 3), ("", 0)])
def test_reasoning_gym(response: str, score: float) -> None:
    assert verifiers.reasoning_gym(response, ENTRY) == pytest.approx(score)  # the share of letters in their place


# --- judging processes ------------------------------------------------------------------------------------------------------------------
def by_word(words: list[str], timeout_s: float = 1.0) -> list[tuple[float, str]]:
    verdicts = score_texts(judging_cases.by_word, words, ["7"] * len(words), timeout_s=timeout_s)
    return [(verdict.score, verdict.reason) for verdict in verdicts]


def test_scores_come_back_in_order() -> None:
    numbers = [str(n % 7) for n in range(300)]
    assert by_word(numbers) == [(float(n), "") for n in numbers]


def test_p11_a_hanging_verifier_costs_its_row_only() -> None:
    start = time.monotonic()
    assert by_word(["1", "hang", "2", "3"]) == [(1.0, ""), (0.0, "timeout"), (2.0, ""), (3.0, "")]
    assert time.monotonic() - start < 20


def test_p11_a_verifier_that_catches_everything_is_killed() -> None:
    (verdict,) = score_texts(judging_cases.deaf, ["x"], ["7"], timeout_s=0.5, workers=1)
    assert (verdict.score, verdict.reason, verdict.failed) == (0.0, "timeout", True)


def test_p11_a_crashing_verifier_costs_its_row_only() -> None:
    assert by_word(["1", "2", "exit", "3"]) == [(1.0, ""), (2.0, ""), (0.0, "crash"), (3.0, "")]


def test_bad_rows_of_all_kinds_keep_the_order() -> None:
    words = ["1", "exit", "2", "raise", "hang", "3", "leave", "4"]
    assert by_word(words) == [(1, ""), (0, "crash"), (2, ""), (0, "error"), (0, "timeout"), (3, ""), (0, "error"), (4, "")]


def test_a_verifier_that_hangs_on_every_row_is_given_up() -> None:
    start = time.monotonic()
    verdicts = score_texts(judging_cases.always_hangs, ["x"] * 256, ["7"] * 256, timeout_s=0.25, workers=2)
    reasons = Counter(verdict.reason for verdict in verdicts)
    assert time.monotonic() - start < 30  # about 5 with the starts of processes; row by row it is over 64
    assert reasons.keys() == {"timeout", "gave_up"}
    assert 8 <= reasons["timeout"] <= 9  # a row that the other process was at is still told as it was
    assert all(verdict.failed and verdict.score == 0.0 for verdict in verdicts)
    assert "8 rows in a row were too slow" in verdicts[-1].detail


def test_messages_are_given_up_too() -> None:
    """4096 rows are 64 messages of 64: each waited for, the first pass alone would be 64 / 2 limits and starts."""
    start = time.monotonic()
    verdicts = score_texts(judging_cases.always_hangs, ["x"] * 4096, ["7"] * 4096, timeout_s=0.25, workers=2)
    assert Counter(verdict.reason for verdict in verdicts)["gave_up"] >= 4087
    assert time.monotonic() - start < 30  # about 7


def test_innocent_rows_between_hanging_ones_are_still_judged() -> None:
    words = ["hang", "1", "hang", "2"] * 5  # 10 hang, never 8 in a row
    assert by_word(words, timeout_s=0.5) == [(0.0, "timeout"), (1.0, ""), (0.0, "timeout"), (2.0, "")] * 5


@pytest.mark.parametrize(
    ("seen", "lost"),
    [
        (["timeout"] * 7, ""),
        (["timeout"] * 7 + ["crash"], "8 rows in a row were too slow or ended their process"),
        (["timeout"] * 7 + ["scored"] + ["crash"] * 7, ""),
        (["timeout", "scored"] * 31, ""),
        (["timeout", "scored"] * 32, "32 rows were too slow"),
        (["crash", "scored"] * 99, ""),  # a crash costs no time
    ],
)
def test_when_a_call_gives_up(seen: list[Literal["timeout", "crash", "scored"]], lost: str) -> None:
    patience = _Patience()
    for reason in seen:
        patience.saw([Verdict(1.0)] if reason == "scored" else Verdict(0.0, reason))
    assert patience.lost == lost


def test_a_call_that_gave_up_does_not_condemn_the_next() -> None:
    assert {reason for _, reason in by_word(["hang"] * 12, timeout_s=0.2)} == {"timeout", "gave_up"}
    assert by_word(["1", "hang", "2"], timeout_s=0.5) == [(1.0, ""), (0.0, "timeout"), (2.0, "")]


def test_slow_rows_that_are_in_time_one_by_one_all_score() -> None:
    assert by_word(["slow"] * 8) == [(1.0, "")] * 8  # 4 rows of 0.4 s a process: the chunk is over the limit of a row


def test_the_reason_says_what_was_raised() -> None:
    (verdict,) = score_texts(judging_cases.by_word, ["raise"], ["7"])
    assert verdict.detail == "ValueError: no 7"


@pytest.mark.parametrize("word", ["nan", "inf", "none"])
def test_p12_a_score_that_is_no_number_names_the_row(word: str) -> None:
    with pytest.raises(DataError, match=rf"by_word returned {word.replace('none', 'None')} for row 2 \('{word}'\)"):
        by_word(["1", "2", word, "3"])


def test_a_blank_text_scores_zero_unasked() -> None:
    assert by_word(["", "  \n", "1"]) == [(0.0, ""), (0.0, ""), (1.0, "")]  # by_word would raise on both


def test_no_rows() -> None:
    assert by_word([]) == []


def test_p21_memory_is_limited() -> None:
    small, large = score_texts(judging_cases.hungry, ["1000", str(3 << 30)], ["", ""], workers=1, memory_bytes=2 << 30)
    assert (small.score, large.score, large.detail) == (1.0, 0.0, "MemoryError: ")


def test_judging_processes_have_no_torch() -> None:
    assert "torch" in sys.modules
    (verdict,) = score_texts(judging_cases.with_torch, ["x"], [""], timeout_s=5.0)
    assert verdict.score == 0.0


def test_a_verifier_that_cannot_travel_is_refused() -> None:
    with pytest.raises(DataError, match=r"<lambda> cannot go to another process .* top level of a module"):
        score_texts(lambda text, answer: 1.0, ["x"], ["7"])


def test_processes_that_cannot_start_are_a_named_error() -> None:
    with pytest.raises(OperatorError, match=r"judging processes of judging_cases.without_library do not start"):
        score_texts(judging_cases.without_library, ["x"], ["7"], workers=1)


def test_a_pool_whose_idle_process_was_killed_is_built_again() -> None:
    (before,) = score_texts(judging_cases.process_id, ["x"], ["7"], workers=1)
    os.kill(int(before.score), signal.SIGKILL)
    (after,) = score_texts(judging_cases.process_id, ["x"], ["7"], workers=1)
    assert not after.failed
    assert after.score != before.score


KILLED = """
import sys, threading, time
from operators.judging import score_texts
from judging_cases import process_id
if __name__ == "__main__":
    def first():
        print(int(score_texts(process_id, ["x"], ["7"], workers=1)[0].score), flush=True)
    caller = threading.Thread(target=first)
    caller.start()
    caller.join()
    time.sleep(1)  # the thread that asked first is gone; the process must not be
    first()
    time.sleep(60)
"""


def test_judging_processes_outlive_the_asking_thread_and_die_with_the_process(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"}, stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        pids = [int(asking.stdout.readline()) for _ in range(2)]
        asking.kill()
    assert pids[0] == pids[1]
    end = time.monotonic() + 10
    while psutil.pid_exists(pids[0]) and psutil.Process(pids[0]).status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(pids[0]) or psutil.Process(pids[0]).status() == psutil.STATUS_ZOMBIE


# --- operators --------------------------------------------------------------------------------------------------------------------------
MASK = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()


def test_the_score_sits_at_the_last_trained_token() -> None:
    scores = exact_match(["7", "7", "7", "8"], ["7"] * 4, MASK)
    assert scores.token_level_scores.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert scores.is_correct.tolist() == [1, 1, 1, 0]
    assert {scores.token_level_scores.dtype, scores.is_correct.dtype} == {torch.float32}


def test_an_empty_response_scores_zero_even_if_nothing_is_the_answer() -> None:
    scores = exact_match([""], [""], torch.tensor([[False, True]]))
    assert scores.token_level_scores.tolist() == [[0, 0]]
    assert scores.is_correct.tolist() == [0]


def test_s17_texts_and_masks_of_different_rows_are_refused() -> None:
    with pytest.raises(DataError, match="1 responses but a response_mask of 4 rows"):
        exact_match(["7"], ["7"], MASK)
    with pytest.raises(DataError, match="4 texts but 1 answers"):
        exact_match(["7"] * 4, ["7"], MASK)


def test_rows_without_any_next_token_position() -> None:
    scores = exact_match(["7"], ["7"], torch.zeros(1, 0, dtype=torch.bool))
    assert scores.token_level_scores.shape == (1, 0)
    assert scores.is_correct.tolist() == [1]


def test_partial_credit_is_a_score_but_not_correct() -> None:
    scores = reasoning_gym_reward(["sun", "nus"], [ENTRY, ENTRY], torch.tensor([[True], [True]]))
    assert scores.token_level_scores.flatten().tolist() == pytest.approx([1 / 3, 1.0])
    assert scores.is_correct.tolist() == [0, 1]


def test_math_reward_runs_under_our_limit() -> None:
    collected()
    scores = math_reward(["it is 0.5", "9^9^9^9"], ["1/2", "3"], torch.tensor([[True], [True]]), timeout_s=2.0)
    assert scores.token_level_scores.flatten().tolist() == [1.0, 0.0]
    assert collected() == {"failed/timeout": 1.0}


def test_a_failed_row_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    math_reward(["1", "1"], ["1", ""], torch.tensor([[True], [True]]))
    (record,) = caplog.records
    assert "operators.verifiers.math_verify failed on 1 of 2 rows, which score 0; row 1 ('1'): error, ValueError" in record.getMessage()


def rewarded(words: list[str], verifier: verifiers.Verifier = judging_cases.by_word, timeout_s: float = 1.0) -> list[float]:
    scores = verify(verifier, words, ["7"] * len(words), torch.ones(len(words), 1, dtype=torch.bool), timeout_s=timeout_s)
    return scores.token_level_scores.flatten().tolist()


def test_failures_are_metrics_by_reason() -> None:
    collected()
    assert rewarded(["1", "raise", "exit", "raise", "hang"]) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert collected() == {"failed/error": 2.0, "failed/crash": 1.0, "failed/timeout": 1.0}


def test_rows_that_were_not_asked_about_are_a_metric() -> None:
    collected()
    with pytest.raises(OperatorError, match="always_hangs failed on all of the 12 rows"):
        rewarded(["x"] * 12, judging_cases.always_hangs, timeout_s=0.2)
    noted = collected()
    assert noted.keys() == {"failed/timeout", "failed/gave_up"}
    assert sum(noted.values()) == 12.0


def test_a_wrong_answer_is_no_failure() -> None:
    collected()
    assert exact_match(["8"] * 8, ["7"] * 8, torch.ones(8, 1, dtype=torch.bool)).is_correct.tolist() == [0.0] * 8
    assert collected() == {}


def test_a_verifier_that_fails_on_every_row_ends_the_run_with_its_first_reason() -> None:
    expected = r"judging_cases\.always_raises failed on all of the 4 rows .*; row 1 \('a'\): error, KeyError: '7'\. A verifier returns 0"
    with pytest.raises(OperatorError, match=expected):
        rewarded(["", "a", "b", "c", "d"], judging_cases.always_raises)  # a blank text is not asked about


def test_single_rows_condemn_a_verifier_only_together() -> None:
    def one(word: str) -> list[float]:
        return rewarded([word], judging_cases.raises_in_turn)

    assert [one(word) for word in ("raise", "raise", "raise", "1", "raise", "raise", "raise")] == [[0], [0], [0], [1], [0], [0], [0]]
    with pytest.raises(OperatorError, match="raises_in_turn failed on all of the 1 rows"):
        one("raise")


def test_g21_a_score_of_zero_stays_zero() -> None:
    raw = torch.tensor([[0.0, 0.0]])
    assert shape_rewards(raw).tolist() == [[0, 0]]


def test_shaping_never_writes_into_the_scores() -> None:
    raw = torch.tensor([[0.0, 1.0]])
    shape_rewards(raw).add_(1)
    length_penalty(raw, torch.tensor([[True, True]]), limit=0, per_token=1.0).add_(1)
    assert raw.tolist() == [[0, 1]]


def test_length_penalty_by_hand() -> None:
    raw = torch.tensor([[0, 0, 1.0, 0], [0, 0, 0, 1.0], [0, 0, 0, 0], [1.0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    shaped = length_penalty(raw, mask, limit=2, per_token=0.25)
    assert shaped.tolist() == [[0, 0, 0.75, 0], [0, 0, 0, 0.5], [0, 0, 0, 0], [1, 0, 0, 0]]
