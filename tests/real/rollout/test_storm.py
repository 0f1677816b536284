"""Many requests while the engine is paused, retracted, updated and aborted at random: every token is accounted for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from rollout_server import InFlight, Server, plain_log_probs, plain_model, weights_of

from rlflow.engines.rollout import Generation, SamplingParams, sync_weights

COUNT = 60


def test_every_request_is_answered_once_and_on_policy(server: Server, model_dir: Path, other_model_dir: Path) -> None:
    rng = random.Random(0)
    folders, models = [model_dir, other_model_dir], [plain_model(model_dir), plain_model(other_model_dir)]
    prompts = [[rng.randrange(3, 40) for _ in range(rng.randint(1, 40))] for _ in range(COUNT)]
    params = SamplingParams(max_new_tokens=250, ignore_eos=True)
    flight = InFlight(server, prompts, params, {"rids": [f"s-{i}" for i in range(COUNT)]})
    version = 0
    while not flight.done:
        act = rng.choice(["sync", "in_place", "retract", "abort_one"])
        if act == "sync":
            version += 1
            sync_weights(server.client, [weights_of(folders[version % 2])], version=version)
        elif act == "abort_one":
            server.client.abort(f"s-{rng.randrange(COUNT)}")
        else:
            server.client.pause("in_place" if act == "in_place" else "retract")
            server.client.continue_generation()
    answers = flight.results()
    assert version > 2
    assert [a.rid for a in answers] == [f"s-{i}" for i in range(COUNT)]
    assert any(len(a.spans) > 1 for a in answers)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.finish_reason.type == "abort" or len(answer.output_ids) == 250
        assert_on_policy(prompt, answer, models)


def assert_on_policy(prompt: list[int], answer: Generation, models: list[object]) -> None:
    """Each span's log-probs are those of the weights that its version names; the spans cover the output."""
    edges = [0, *(s.end for s in answer.spans)]
    assert [s.start for s in answer.spans] == edges[:-1]
    assert edges[-1] == len(answer.output_ids)
    if answer.output_ids:
        expected = [plain_log_probs(m, prompt, answer.output_ids) for m in models]
        for s in answer.spans:
            wanted = expected[int(s.version) % 2][s.start : s.end]
            np.testing.assert_allclose(answer.log_probs[s.start : s.end], wanted, atol=5e-5)
