"""Requests that are refused with a 400 naming the reason; the server lives on."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_server import CONTEXT, VOCAB, InFlight, Server, wait_for

from rlflow.engines.rollout import SamplingParams

OK: dict[str, Any] = {"input_ids": [5, 6, 7]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of input_ids and text"),
    ({"input_ids": [5], "text": "1"}, "exactly one of input_ids and text"),
    ({"input_ids": []}, "empty"),
    ({"input_ids": [[5], []]}, "empty prompt"),
    ({"input_ids": [5, [6]]}, "mixes"),
    ({"input_ids": ["5"]}, "Expected `int | array`"),
    ({"input_ids": [5, VOCAB]}, f"holds {VOCAB}, outside the vocabulary of {VOCAB}"),
    ({"input_ids": [-1]}, "holds -1, outside the vocabulary"),
    ({"text": "A"}, "cannot be tokenized"),
    (OK | {"sampling_params": {"max_new_tokens": CONTEXT - 2}}, f"{CONTEXT} tokens. You requested a total of {CONTEXT + 1}"),
    (OK | {"sampling_params": {"max_new_tokens": 0}}, "max_new_tokens is 0"),
    (OK | {"sampling_params": {"temperature": -1}}, "temperature is -1"),
    (OK | {"sampling_params": {"top_p": 0}}, "top_p is 0"),
    (OK | {"sampling_params": {"top_p": 1.5}}, "top_p is 1.5"),
    (OK | {"sampling_params": {"top_k": 0}}, "top_k is 0"),
    (OK | {"sampling_params": {"min_p": 2}}, "min_p is 2"),
    (OK | {"sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}}, "min_new_tokens is 5"),
    (OK | {"sampling_params": {"n": 0}}, "n is 0"),
    (OK | {"sampling_params": {"stop": ""}}, "stop is ['']"),
    (OK | {"sampling_params": {"frequency_penalty": 0.5}}, "frequency_penalty is not supported"),
    (OK | {"sampling_params": {"json_schema": "{}"}}, "json_schema is not supported"),
    (OK | {"sampling_params": [{}, {}]}, "2 sampling_params for 1 prompts"),
    (OK | {"rid": ["a", "b"]}, "rid lists 2 ids"),
    ({"input_ids": [[5], [6]], "rid": ["a", "a"]}, "(1 different)"),
    (OK | {"stream": True}, "stream is not supported"),
    (OK | {"top_logprobs_num": 2}, "top_logprobs_num is not supported"),
    (OK | {"logprob_start_len": 3}, "logprob_start_len=3"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_a_bad_generate_is_refused(server: Server, body: dict[str, Any], message: str) -> None:
    status, answer = server.post("/generate", body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_unknown_sampling_keys_are_refused_in_sglangs_words(server: Server) -> None:
    status, answer = server.post("/generate", OK | {"sampling_params": {"bogus": 1}})
    assert status == 400
    assert answer["error"].startswith("unknown field `bogus`, expected one of `max_new_tokens`, ")


def test_unknown_top_level_keys_are_ignored(server: Server) -> None:
    assert server.post("/generate", OK | {"bogus": 1})[0] == 200


def test_null_means_the_default(server: Server) -> None:
    params = {"max_new_tokens": 2, "temperature": None, "stop": None, "n": None, "frequency_penalty": None, "top_k": None}
    assert server.post("/generate", OK | {"sampling_params": params, "rid": None, "stream": False})[0] == 200


def test_a_body_that_is_no_json_is_refused(server: Server) -> None:
    import urllib3

    assert urllib3.request("POST", server.url + "/generate", body=b"{", retries=False).status == 400


def test_an_id_in_flight_is_refused_and_free_again_afterwards(server: Server) -> None:
    server.client.pause("retract")
    flight = InFlight(server, [[5, 6]], SamplingParams(max_new_tokens=2), {"rids": ["dup"]})
    wait_for(lambda: server.load()["queues"]["paused"] == 1, "the first request")
    assert server.post("/generate", OK | {"rid": "dup"}) == (400, {"error": {"message": "Duplicate request ID detected: dup"}})
    server.client.continue_generation()
    flight.results()
    assert server.post("/generate", OK | {"rid": "dup"})[0] == 200


@pytest.mark.parametrize("path", ["/get_weight_version", "/get_load", "/nothing"])
def test_paths_outside_the_contract_are_404(server: Server, path: str) -> None:
    assert server.call("GET", path)[0] == 404
