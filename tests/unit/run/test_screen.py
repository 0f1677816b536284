"""What a person sees: lines in a pipe, a table on a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from rlflow.run.screen import COLUMNS, LiveScreen, PlainScreen, columns_for, held_out_text, step_cells

LINE: dict[str, Any] = {
    "step": 3,
    "reward": 0.25,
    "seconds": 2.0,
    "tokens": 500,
    "staleness": {"0": 10, "2": 1},
    "queue": {"in_flight": 7, "ready_groups": 1, "batches": 0},
    "pool_bytes": 1_500_000,
    "controller_socket_bytes": 4096,
    "metrics": {"actor.train/loss": 0.123456, "actor.train/entropy": 2.0},
}


def test_a_step_as_short_texts() -> None:
    assert step_cells(LINE) == {
        "step": "3",
        "reward": "0.250",
        "s/step": "2.00",
        "tok/s": "250",
        "loss": "0.1235",
        "entropy": "2",
        "lag": "2",
        "in flight": "7",
        "pool MB": "1.50",
        "socket B": "4096",
        "failed": "",
    }


def test_rows_whose_verifier_failed_are_told() -> None:
    metrics = {"number_match/failed/timeout": 2.0, "number_match/failed/crash": 1.0}
    assert step_cells(LINE | {"metrics": metrics})["failed"] == "2 timeout, 1 crash"


def test_a_pipeline_without_a_reward_has_an_empty_cell() -> None:
    assert step_cells(LINE | {"reward": None, "metrics": {}})["reward"] == ""


def test_a_pipe_gets_one_line_a_step() -> None:
    stream = io.StringIO()
    with PlainScreen(stream, 9) as screen:
        screen.step(LINE)
    assert stream.getvalue() == (
        "step 3/9  reward 0.250  s/step 2.00  loss 0.1235  entropy 2  tok/s 250  lag 2  in flight 7  pool MB 1.50  socket B 4096\n"
    )


def test_the_first_evaluation_says_what_has_to_be_beaten() -> None:
    line = {"version": 0, "reward": 0.1, "prompts": 222.0, "best_constant": 0.27, "best_blind": 0.3}
    assert held_out_text(line) == (
        "held-out at version 0: reward 0.100 on 222 prompts  (best constant answer 0.270, best answer that ignores the operands 0.300)"
    )
    assert held_out_text(line | {"version": 5}) == "held-out at version 5: reward 0.100 on 222 prompts"


def test_a_terminal_gets_the_last_steps_and_notes_as_they_are() -> None:
    stream = io.StringIO()
    with LiveScreen(Console(file=stream, force_terminal=True, width=160), 9, rows=2) as screen:
        screen.note("run [bold]folder[/bold]")
        for step in (1, 2, 3):
            screen.step(LINE | {"step": step})
        assert [cells["step"] for cells in screen.lines] == ["2", "3"]
    assert "run [bold]folder[/bold]" in stream.getvalue()
    assert "0.1235" in stream.getvalue()


def test_a_narrow_terminal_gets_fewer_columns_and_no_cut_numbers() -> None:
    assert columns_for(80) == ("step", "reward", "held-out", "s/step", "loss", "entropy", "tok/s", "lag")
    assert columns_for(140) == COLUMNS
    stream = io.StringIO()
    with LiveScreen(Console(file=stream, force_terminal=True, width=80), 9, rows=2) as screen:
        screen.step(LINE)
    assert "0.1235" in stream.getvalue()
    assert "…" not in stream.getvalue()
