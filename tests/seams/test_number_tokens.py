"""S and G7: which position speaks about which token, and whose it is; V13 and V14: which distribution a log-prob is of."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from operators.batching import dispatch
from operators.dataset import dataset
from operators.flatten import Turn, chain, flatten
from operators.models import tokenizer_of
from operators.samples import Played, sample_of
from operators.turns import Course, Rules, TurnLoop
from rlflow.engines.rollout import Generation, HttpRolloutClient, SamplingParams
from rlflow.engines.rollout.embedded.sampling import SamplingRows, select_tokens
from rlflow.engines.rollout.protocol import FinishReason, WeightVersionSpan
from rlflow.engines.train.forward import PolicyOutput, predicting
from rlflow.errors import EngineError


def row_of(prompt: list[int], said: list[int], log_probs: list[float]) -> Any:
    return flatten(chain([Turn(tokens=prompt, own=False), Turn(tokens=said, own=True, log_probs=log_probs)]))[0]


def sample(*rows: Any) -> Any:
    """These rows as a batch, right-padded."""
    who: Any = SimpleNamespace(uid=torch.arange(len(rows)), traj_uid=torch.zeros(len(rows)), answer=[""] * len(rows))
    return sample_of([[Played(row=row, text="")] for row in rows], who, version=0)


# --- S1 -----------------------------------------------------------------------------------------------------------------------------
def test_S1_log_probs_of_a_response_are_its_last_and_not_the_prompts() -> None:
    """After a change of layout `[:n]` of right-aligned log-probs gave those of the prompt. Mask 00111: -0.1, -0.2, -0.3."""
    row = row_of([1, 2, 3], [7, 8, 9], [-0.1, -0.2, -0.3])
    assert row.response_mask.tolist() == [False, False, True, True, True]
    assert row.rollout_log_probs[row.response_mask].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    outputs = torch.tensor([[-9.0, -8.0, -0.1, -0.2, -0.3, -7.0]])  # what a model says after each of the six tokens
    assert predicting(outputs, 3).flatten().tolist() == pytest.approx([-0.1, -0.2, -0.3])


def test_S1_in_a_batch_it_is_the_mask_that_says_where_they_are() -> None:
    batch = sample(
        row_of([1, 2, 3], [7, 8, 9], [-0.1, -0.2, -0.3]), row_of([1], [7], [-0.4]), row_of([1, 2, 3, 4, 5], [7, 8], [-0.5, -0.6])
    )
    found = [line[mask].tolist() for line, mask in zip(batch.rollout_log_probs, batch.response_mask, strict=True)]
    assert found == [pytest.approx([-0.1, -0.2, -0.3]), pytest.approx([-0.4]), pytest.approx([-0.5, -0.6])]


def test_S1_a_response_of_no_token_has_no_log_prob() -> None:
    """n = 0 and `[-n:]` is everything: the whole prompt would have been trained."""
    row = row_of([1, 2, 3], [], [])
    assert row.rollout_log_probs[row.response_mask].tolist() == []
    assert (row.response_mask.tolist(), row.rollout_log_probs.tolist()) == ([False, False], [0.0, 0.0])
    assert predicting(torch.tensor([[-9.0, -8.0, -7.0]]), 0).shape == (1, 0)
    assert sample(row, row_of([1], [7], [-0.4])).response_mask.tolist() == [[False, False], [True, False]]


# --- S2 -----------------------------------------------------------------------------------------------------------------------------
def test_S2_the_first_token_of_a_response_is_trained() -> None:
    """P = 3, R = 4: logits rows 2 .. 5. The mask began one too late, and what comes after the prompt was never learnt."""
    row = row_of([1, 2, 3], [7, 8, 9, 10], [-0.1, -0.2, -0.3, -0.4])
    predicts = np.flatnonzero(row.response_mask)  # position t speaks about token t + 1
    assert predicts.tolist() == [2, 3, 4, 5]
    assert row.responses[predicts].tolist() == [7, 8, 9, 10]
    assert predicting(torch.arange(7.0).reshape(1, 7), 4).flatten().tolist() == [2, 3, 4, 5]


# --- S6 -----------------------------------------------------------------------------------------------------------------------------
def test_S6_an_end_token_that_is_also_the_pad_is_inside_its_row() -> None:
    """[5, 6, 0, 0, 0] with eos = pad = 0: `ids != pad` hid the end token, and the model never learnt to stop. It is 1, 1, 1, 0, 0."""
    batch = sample(row_of([5], [6, 0], [-0.1, -0.2]), row_of([5], [6, 6, 6, 0], [-0.1] * 4))
    assert batch.input_ids[0].tolist() == [5, 6, 0, 0, 0]
    assert batch.attention_mask[0].int().tolist() == [1, 1, 1, 0, 0]
    assert batch.response_mask[0].int().tolist() == [1, 1, 0, 0]
    assert batch.rollout_log_probs[0].tolist() == pytest.approx([-0.1, -0.2, 0.0, 0.0])


# --- S15 ----------------------------------------------------------------------------------------------------------------------------
@contextmanager
def engine(said: int, *log_probs: tuple[float, int]) -> Iterator[HttpRolloutClient]:
    """A client of an engine that says one token, and these log-probs for it; the most likely token is told beside them."""
    meta = {
        "id": "r", "finish_reason": {"type": "length", "length": 1}, "weight_version": "0", "prompt_tokens": 1, "completion_tokens": 1,
        "weight_versions": [{"version": "0", "start": 0, "end": 1}],
        "output_token_logprobs": [[value, token, None] for value, token in log_probs],
        "output_top_logprobs": [[[-0.1, 3, "best"], [-2.0, 7, "sampled"]]],
    }  # fmt: skip
    body = json.dumps({"text": "", "output_ids": [said], "meta_info": meta}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield HttpRolloutClient(f"http://127.0.0.1:{server.server_port}", timeout=10)
    finally:
        server.shutdown()
        server.server_close()


def test_S15_the_log_prob_is_that_of_the_sampled_token() -> None:
    """{best: -0.1, sampled: -2}: the first entry was taken, that of a token which nobody sampled. It is -2."""
    with engine(7, (-2.0, 7)) as client:
        said = client.generate([5], SamplingParams())
    assert (said.output_ids, said.log_probs) == ([7], [-2.0])


def test_S15_the_log_prob_of_another_token_is_refused() -> None:
    with engine(7, (-0.1, 3)) as client, pytest.raises(EngineError, match="belong to other tokens than output_ids"):
        client.generate([5], SamplingParams())


def test_S15_the_embedded_engine_scores_what_it_drew() -> None:
    """p = 0.6, 0.3, 0.1, drawn with a hundred seeds: each token that comes out has the log of its own probability."""
    tokens, log_probs = select_tokens(PROBABILITIES.log().expand(100, -1), drawn(100))
    assert set(tokens.tolist()) == {0, 1, 2}
    assert log_probs.tolist() == pytest.approx([math.log((0.6, 0.3, 0.1)[token]) for token in tokens], rel=1e-6)


# --- G7 -----------------------------------------------------------------------------------------------------------------------------
def ids(text: str) -> list[int]:
    return list(tokenizer_of("tiny").encode(text).ids)


def test_G7_turns_of_an_assistant_in_the_prompt_are_the_prompt(tmp_path: Path) -> None:
    """The prompt is [user, assistant, user]. Found by role, it ended at the first assistant: groups were keyed by "2+2=", and the
    assistant's old answer was trained. Here a prompt is what the data set says it is, by its length: two that differ in their last
    message are two groups, and what was said before is in no mask."""
    dialogues = ["2+2= 4 and 3+3= ", "2+2= 4 and 1+1= "]
    table = pa.table({"prompt": dialogues, "answer": ["6", "2"], "template": ["", ""], "split": ["train", "train"]})
    pq.write_table(table, tmp_path / "dialogues.parquet")
    asked = dispatch(dataset(str(tmp_path / "dialogues.parquet"), tokenizer="tiny"), n=2)
    assert np.asarray(asked.uid).tolist() == [0, 0, 1, 1]
    assert [row.tolist() for row in asked.prompt_ids] == [ids(dialogues[0])] * 2 + [ids(dialogues[1])] * 2

    def says_six(course: Course) -> Generation:
        return Generation(
            rid="r", output_ids=ids("6"), log_probs=[-0.5], text="6", finish_reason=FinishReason(type="stop"), prompt_tokens=0,
            weight_version="0", spans=[WeightVersionSpan("0", 0, 1)], num_retractions=0,
        )  # fmt: skip

    tokenizer = tokenizer_of("tiny")
    loop = TurnLoop(
        says_six, tokenizer, lambda row: str(tokenizer.decode(list(row))), Rules(environment=None), max_new_tokens=4, context=None
    )
    batch = sample_of([loop.play(prompt.tolist(), "", seed=0, place="") for prompt in asked.prompt_ids], asked, version=0)
    prompt = len(ids(dialogues[0]))
    assert batch.response_mask.int().tolist() == [[0] * (prompt - 1) + [1]] * 4
    assert batch.responses[batch.response_mask].tolist() == ids("6") * 4
    assert batch.uid.tolist() == [0, 0, 1, 1]


# --- V13, V14 -----------------------------------------------------------------------------------------------------------------------
PROBABILITIES = torch.tensor([0.6, 0.3, 0.1])


def drawn(rows: int, *, greedy: bool = False, **given: float) -> SamplingRows:
    cut = {"top_p": 1.0, "temperature": 1.0} | given
    return SamplingRows(
        temperature=np.full(rows, cut["temperature"], np.float32), greedy=np.full(rows, greedy), seed=np.arange(rows, dtype=np.uint64),
        step=np.zeros(rows, np.int64), top_k=np.zeros(rows, np.int64), top_p=np.full(rows, cut["top_p"], np.float32),
        min_p=np.zeros(rows, np.float32), truncated=np.full(rows, cut["top_p"] < 1), masked_ids=[],
    )  # fmt: skip


def test_V13_an_engine_and_a_trainer_at_one_temperature_have_a_ratio_of_1() -> None:
    """Logits 2, 0, -1 at T = 0.6: the first token has -0.0415, and at T = 1 -0.1698. A trainer that left T out read a ratio of 1.137 or
    its inverse on a policy that had not changed."""
    logits, label = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0]])
    token, recorded = select_tokens(logits, drawn(1, greedy=True, temperature=0.6))
    scaled = PolicyOutput(logits[None] / 0.6, label).log_probs.item()
    raw = PolicyOutput(logits[None], label).log_probs.item()
    assert (token.tolist(), recorded.tolist()) == ([0], [pytest.approx(-0.0415, abs=5e-5)])
    assert math.exp(scaled - float(recorded[0])) == pytest.approx(1.0, abs=1e-6)
    assert raw == pytest.approx(-0.1698, abs=5e-5)
    assert math.exp(float(recorded[0]) - raw) == pytest.approx(1.137, abs=5e-4)


def test_V14_a_log_prob_under_top_p_is_of_the_whole_distribution() -> None:
    """p = 0.6, 0.3, 0.1 at top-p 0.9 (the third is never drawn). A sampler that records its renormalised 0.6 / 0.9 makes an unchanged
    policy read a ratio of 0.9, the mass that is kept. Ours records 0.6: the ratio is 1."""
    kept, label = 0.9, torch.tensor([[0]])
    tokens, recorded = select_tokens(PROBABILITIES.log().expand(200, -1), drawn(200, top_p=kept - 1e-6))
    assert set(tokens.tolist()) == {0, 1}
    first = float(recorded[tokens.tolist().index(0)])
    trained = PolicyOutput(PROBABILITIES.log()[None, None], label).log_probs.item()
    assert math.exp(first) == pytest.approx(0.6, rel=1e-6)
    assert math.exp(trained - first) == pytest.approx(1.0, rel=1e-6)
    renormalised = math.log(0.6 / kept)
    assert math.exp(trained - renormalised) == pytest.approx(0.9, rel=1e-6)
