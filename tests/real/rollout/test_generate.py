"""What /generate samples, against one plain forward of the same weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout_server import ALPHABET, VOCAB, Server, plain_log_probs, plain_model, running_server, sharp_model, wait_for, with_seed

from rlflow.engines.rollout import SamplingParams
from rlflow.engines.tiny import EOS_ID, encode_text, load_tokenizer

PROMPTS = [[3 + (7 * i + 5 * j) % len(ALPHABET) for j in range(1 + 3 * i)] for i in range(12)]  # lengths 1, 4, … 34


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Any:
    return plain_model(model_dir)


def seeded(count: int, **fields: Any) -> list[SamplingParams]:
    return [SamplingParams(sampling_seed=i, **fields) for i in range(count)]


def test_logprobs_are_those_of_a_plain_forward(server: Server, model: Any) -> None:
    params = [SamplingParams(sampling_seed=i, max_new_tokens=5 + 17 * i, ignore_eos=True) for i in range(len(PROMPTS))]
    answers = server.client.generate_batch(PROMPTS, params)
    for prompt, answer, asked in zip(PROMPTS, answers, params, strict=True):
        assert len(answer.output_ids) == asked.max_new_tokens
        np.testing.assert_allclose(answer.log_probs, plain_log_probs(model, prompt, answer.output_ids), atol=1e-5)


def test_qwen2_logprobs_are_those_of_a_plain_forward(tmp_path: Path) -> None:
    path = sharp_model(tmp_path / "qwen2", seed=3, architecture="qwen2")
    with running_server(path, tmp_path) as server:
        answers = server.client.generate_batch(PROMPTS, seeded(len(PROMPTS), max_new_tokens=20))
    reference = plain_model(path)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        np.testing.assert_allclose(answer.log_probs, plain_log_probs(reference, prompt, answer.output_ids), atol=1e-5)


def test_logprobs_are_under_the_temperature(server: Server, model: Any) -> None:
    answer = server.client.generate(PROMPTS[3], SamplingParams(max_new_tokens=30, temperature=0.7, sampling_seed=1, ignore_eos=True))
    np.testing.assert_allclose(answer.log_probs, plain_log_probs(model, PROMPTS[3], answer.output_ids, temperature=0.7), atol=1e-5)


def test_logprobs_are_before_truncation(server: Server, model: Any) -> None:
    params = SamplingParams(max_new_tokens=30, top_k=3, top_p=0.5, min_p=0.1, sampling_seed=1, ignore_eos=True)
    answer = server.client.generate(PROMPTS[3], params)
    np.testing.assert_allclose(answer.log_probs, plain_log_probs(model, PROMPTS[3], answer.output_ids), atol=1e-5)


def test_greedy_takes_the_most_likely_token_each_time(server: Server, model: Any) -> None:
    answer = server.client.generate(PROMPTS[5], SamplingParams(max_new_tokens=25, temperature=0, ignore_eos=True))
    ids = list(PROMPTS[5])
    for token in answer.output_ids:
        with torch.no_grad():
            assert model(torch.tensor([ids])).logits[0, -1].argmax().item() == token
        ids.append(token)


def test_top_k_1_is_greedy(server: Server) -> None:
    greedy = server.client.generate(PROMPTS[5], SamplingParams(max_new_tokens=25, temperature=0))
    assert server.client.generate(PROMPTS[5], SamplingParams(max_new_tokens=25, top_k=1)).output_ids == greedy.output_ids


def test_prompt_logprobs_are_those_of_a_plain_forward(server: Server, model: Any) -> None:
    body = {"input_ids": PROMPTS[4], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True, "logprob_start_len": 0}
    _, answer = server.post("/generate", body)
    entries = answer["meta_info"]["input_token_logprobs"]
    assert entries[0] == [None, PROMPTS[4][0], None]
    assert [e[1] for e in entries] == PROMPTS[4]
    np.testing.assert_allclose([e[0] for e in entries[1:]], plain_log_probs(model, PROMPTS[4][:1], PROMPTS[4][1:]), atol=1e-5)


def test_tokens_do_not_depend_on_the_neighbours_in_the_batch(server: Server) -> None:
    params = seeded(len(PROMPTS), max_new_tokens=40)
    together = server.client.generate_batch(PROMPTS, params)
    alone = [server.client.generate(prompt, p) for prompt, p in zip(PROMPTS, params, strict=True)]
    assert [g.output_ids for g in together] == [g.output_ids for g in alone]


def test_a_seed_decides_the_tokens(server: Server) -> None:
    one, same, other = (server.client.generate(PROMPTS[3], SamplingParams(max_new_tokens=20, sampling_seed=s)) for s in (5, 5, 6))
    assert one.output_ids == same.output_ids != other.output_ids


def test_requests_without_a_seed_differ(server: Server) -> None:
    answers = server.client.generate_batch([PROMPTS[3]] * 8, SamplingParams(max_new_tokens=10, ignore_eos=True))
    assert len({tuple(a.output_ids) for a in answers}) == 8


def test_first_tokens_follow_the_models_distribution(server: Server, model: Any) -> None:
    draws = 4000
    answers = server.client.generate_batch([PROMPTS[2]] * draws, seeded(draws, max_new_tokens=1))
    with torch.no_grad():
        expected = draws * model(torch.tensor([PROMPTS[2]])).logits[0, -1].softmax(-1).numpy()
    seen = Counter(a.output_ids[0] for a in answers)
    large = expected >= 5
    observed = np.array([seen[i] for i in range(VOCAB)], float)
    chi2 = ((observed[large] - expected[large]) ** 2 / expected[large]).sum()
    dof = large.sum() - 1
    assert chi2 < dof + 4 * np.sqrt(2 * dof)  # four standard deviations; the seeds are fixed, so this never flickers
    assert large.sum() > 10


def test_top_p_keeps_the_nucleus_only(server: Server, model: Any) -> None:
    with torch.no_grad():
        probs = model(torch.tensor([PROMPTS[2]])).logits[0, -1].softmax(-1).sort(descending=True)
    size = int((probs.values.cumsum(0) - probs.values <= 0.5).sum())
    answers = server.client.generate_batch([PROMPTS[2]] * 500, seeded(500, max_new_tokens=1, top_p=0.5))
    assert {a.output_ids[0] for a in answers} == set(probs.indices[:size].tolist())


def test_eos_ends_a_request_and_is_kept(server: Server) -> None:
    answers = server.client.generate_batch([PROMPTS[1]] * 64, seeded(64, max_new_tokens=80))
    stopped = [a for a in answers if a.finish_reason.type == "stop"]
    assert stopped
    for answer in stopped:
        assert (answer.finish_reason.matched, answer.output_ids.index(EOS_ID)) == (EOS_ID, len(answer.output_ids) - 1)
    assert all(EOS_ID not in a.output_ids and len(a.output_ids) == 80 for a in answers if a.finish_reason.type == "length")


def test_ignore_eos_runs_to_the_limit(server: Server) -> None:
    answers = server.client.generate_batch([PROMPTS[1]] * 64, seeded(64, max_new_tokens=80, ignore_eos=True))
    assert {(a.finish_reason.type, a.finish_reason.length) for a in answers} == {("length", 80)}
    assert any(EOS_ID in a.output_ids for a in answers)


def test_stop_token_ids_end_a_request(server: Server) -> None:
    free = server.client.generate(PROMPTS[4], SamplingParams(max_new_tokens=30, sampling_seed=9, ignore_eos=True)).output_ids
    params = SamplingParams(max_new_tokens=30, sampling_seed=9, ignore_eos=True, stop_token_ids=[free[7]])
    answer = server.client.generate(PROMPTS[4], params)
    assert answer.output_ids == free[: free.index(free[7]) + 1]
    assert answer.finish_reason.matched == free[7]


def test_min_new_tokens_masks_stop_tokens_first(server: Server) -> None:
    stops = list(range(3, VOCAB, 2))
    params = seeded(50, max_new_tokens=20, min_new_tokens=6, stop_token_ids=stops)
    for answer in server.client.generate_batch([PROMPTS[1]] * 50, params):
        assert not set(answer.output_ids[:6]) & {*stops, EOS_ID}
        assert len(answer.output_ids) > 6


def test_stop_strings_end_a_request_and_trim_its_text(server: Server, model_dir: Path) -> None:
    free = server.client.generate(PROMPTS[4], SamplingParams(max_new_tokens=30, temperature=0, ignore_eos=True))
    needle = free.text[4:6]
    body = {"input_ids": PROMPTS[4], "sampling_params": {"max_new_tokens": 30, "temperature": 0, "ignore_eos": True, "stop": needle}}
    _, answer = server.post("/generate", body)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": needle}
    assert answer["text"] == free.text[: free.text.index(needle)]
    assert load_tokenizer(model_dir).decode(answer["output_ids"]) == answer["text"] + needle


def test_text_is_tokenized(server: Server, model_dir: Path) -> None:
    ids = encode_text(load_tokenizer(model_dir), "12+34=")
    params = {"max_new_tokens": 8, "sampling_seed": 1}
    by_text = server.post("/generate", {"text": "12+34=", "sampling_params": params, "return_prompt_token_ids": True})[1]
    by_ids = server.post("/generate", {"input_ids": ids, "sampling_params": params})[1]
    assert by_text["prompt_token_ids"] == ids
    assert by_text["output_ids"] == by_ids["output_ids"]


def test_n_samples_are_a_list_of_different_answers(server: Server) -> None:
    body = {"input_ids": PROMPTS[4], "sampling_params": {"max_new_tokens": 12, "n": 3, "sampling_seed": 4, "ignore_eos": True}, "rid": "nn"}
    _, answers = server.post("/generate", body)
    assert [a["index"] for a in answers] == [0, 1, 2]
    assert len({tuple(a["output_ids"]) for a in answers}) == 3
    assert "nn" not in {a["meta_info"]["id"] for a in answers}
    first = server.client.generate(PROMPTS[4], SamplingParams(max_new_tokens=12, sampling_seed=4, ignore_eos=True))
    assert answers[0]["output_ids"] == first.output_ids


def test_more_requests_than_slots_all_finish(model_dir: Path, tmp_path: Path) -> None:
    params = [SamplingParams(max_new_tokens=1 + (i * 7) % 23, sampling_seed=i, ignore_eos=True) for i in range(40)]
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(40)]
    with running_server(model_dir, tmp_path, "--max-running-requests", "3", "--max-total-tokens", "120") as small:
        answers = small.client.generate_batch(prompts, params)
    reference = plain_model(model_dir)
    for prompt, answer, asked in zip(prompts, answers, params, strict=True):
        assert len(answer.output_ids) == asked.max_new_tokens
        np.testing.assert_allclose(answer.log_probs, plain_log_probs(reference, prompt, answer.output_ids), atol=1e-5)


def test_abort_returns_the_tokens_so_far(server: Server) -> None:
    long = SamplingParams(max_new_tokens=1900, ignore_eos=True)
    flight = server.start_generations([PROMPTS[1], PROMPTS[2]], long, rids=["ab-1", "ab-2"])
    server.client.abort("ab")  # not a prefix match
    server.client.abort("ab-1")
    server.client.abort("ab-1")  # again: nothing
    aborted, other = flight.results()
    assert (aborted.finish_reason.type, aborted.finish_reason.message) == ("abort", "Aborted")
    assert 20 <= len(aborted.output_ids) < 1900
    assert (other.finish_reason.type, len(other.output_ids)) == ("length", 1900)
    full = server.client.generate(PROMPTS[1], with_seed(long, 100))
    assert full.output_ids[: len(aborted.output_ids)] == aborted.output_ids


def test_a_client_that_leaves_aborts_its_request(server: Server) -> None:
    import urllib3

    body = {"input_ids": PROMPTS[1], "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}}
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        urllib3.request("POST", server.url + "/generate", json=body, timeout=0.2, retries=False)
    before = server.get("/server_info")["internal_states"][0]["generated_tokens"]
    wait_for(lambda: server.load()["num_running_reqs"] == 0, "the request to be dropped", timeout=1.0)
    assert server.get("/server_info")["internal_states"][0]["generated_tokens"] - before < 1500
