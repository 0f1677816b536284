"""A reward of parts, one of them a judge behind a server that stumbles, in a real run: told by name, and the key of the server nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Handler, closes, says, serving, status
from run_cases import SMALL, Run

REWARD = """
from operators.chat import ChatServer
from operators.chat_judge import judged_by
from operators.mixture import mixture
from operators.reward import integer_match, matches

judge = ChatServer(url="{url}", model="judge", api_key_env="A_JUDGE_KEY", backoff_s=0.01)
rewarded = mixture(format=(matches(r"[0-9]+"), 0.1), correct=(integer_match, 1.0), judge=(judged_by(judge), 0.2))
"""


def test_a_mixture_with_a_judge_over_http_runs(start_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_JUDGE_KEY", "sk-very-secret")
    faults = iter([closes, status(429, Retry_After="0"), status(503)] * 2)

    def stumbles(handler: Handler) -> None:
        next(faults, says("Score: 0.5"))(handler)

    with serving(other=stumbles) as server:
        (tmp_path / "my_reward.py").write_text(REWARD.format(url=server.url))
        run = start_run("grpo", *SMALL, "--steps", "2", "--reward", "my_reward:rewarded", "--held-out", "operators.reward:integer_match")
        code, _, err = run.end(240)
        assert code == 0, err
        assert {headers.get("Authorization") for _, headers, _ in server.requests} == {"Bearer sk-very-secret"}
    steps = run.steps()
    assert len(steps) == 2
    for step in steps:
        told = step["metrics"]
        assert 0.0 < told["reward/judge"] <= 0.5  # 0.5 a row, and 0 for a blank response, of which nobody is asked
        assert not [name for name in told if "failed" in name]  # each row was asked about until there was an answer
        assert told["reward/judge/only"] == 0.0
        assert told["reward/correct"] == told["integer_match/is_correct"] == step["reward"]
        mixed = told["reward/correct"] + 0.1 * told["reward/format"] + 0.2 * told["reward/judge"]
        assert told["shape_rewards/rewards"] == pytest.approx(mixed, abs=1e-6)
        assert -1.0 <= told["reward/length_correlation"] <= 1.0
    written = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(written) > 10
    assert [path for path in written if b"very-secret" in path.read_bytes()] == []
