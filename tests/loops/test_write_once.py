"""`--debug` reaches the processes in which operators run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_cases import SMALL, Run

REWARD = '''
from operators.fields import Answer, ResponseMask, ResponseText
from operators.records import Scores
from operators.reward import integer_match
from rlflow import operator


@operator(per="row")
def hasty(response_text: ResponseText, answer: Answer, response_mask: ResponseMask) -> Scores:
    scores = integer_match(response_text, answer, response_mask)
    response_mask.data[:, 0] = False  # torch does not count this write
    return scores
'''


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--debug",), 1)])
def test_a_write_behind_the_counter_ends_a_debug_run(
    start_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], code: int
) -> None:
    monkeypatch.delenv("RLFLOW_DEBUG")
    (tmp_path / "hasty_reward.py").write_text(REWARD)
    run = start_run("grpo", *SMALL, "--steps", "1", "--reward", "hasty_reward:hasty", *flags)
    ended, _, err = run.end(240)
    assert ended == code, err
    assert ("`hasty` " in err and "wrote into its input `response_mask`" in err) == bool(code)
