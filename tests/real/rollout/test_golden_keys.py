"""The JSON has the keys that SGLang's answers were seen to have (golden_keys.json); our extensions are listed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rollout_server import InFlight, Server, wait_for

from rlflow.engines.rollout import SamplingParams

GOLDEN: dict[str, list[str]] = json.loads((Path(__file__).parent / "golden_keys.json").read_text())
REQUEST = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}, "return_logprob": True}


def keys(name: str, found: dict[str, Any]) -> None:
    assert sorted(found) == GOLDEN[name]


@pytest.fixture
def finished(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = server.post("/generate", REQUEST)[1]
    return answer


def test_generate(finished: dict[str, Any]) -> None:
    keys("generate", finished)
    keys("meta_info", finished["meta_info"])
    keys("finish.length", finished["meta_info"]["finish_reason"])
    keys("weight_versions", finished["meta_info"]["weight_versions"][0])


def test_logprob_entries_are_triples(finished: dict[str, Any]) -> None:
    entries = finished["meta_info"]["output_token_logprobs"]
    assert [type(x) for x in entries[0]] == [float, int, type(None)]
    assert [e[1] for e in entries] == finished["output_ids"]
    assert finished["meta_info"]["output_token_logprobs_length"] == len(entries) == 4
    assert finished["meta_info"]["input_token_logprobs"] == []


def test_no_logprob_keys_unless_asked_for(server: Server) -> None:
    meta = server.post("/generate", REQUEST | {"return_logprob": False})[1]["meta_info"]
    assert sorted(set(GOLDEN["meta_info"]) - set(meta)) == ["input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"]


def test_stop(server: Server) -> None:
    params = {"max_new_tokens": 4, "stop_token_ids": list(range(44))}
    keys("finish.stop", server.post("/generate", REQUEST | {"sampling_params": params})[1]["meta_info"]["finish_reason"])


def test_abort_of_a_running_request(server: Server) -> None:
    flight = server.start_generations([[5]], SamplingParams(max_new_tokens=1900, ignore_eos=True), rids=["x"])
    server.client.abort("x")
    reason = flight.results()[0].finish_reason
    assert (reason.message, reason.status_code, reason.err_type) == ("Aborted", None, None)


def test_abort_of_a_waiting_request_has_the_thin_form(server: Server) -> None:
    server.client.pause("retract")
    answers: list[Any] = []
    import threading

    thread = threading.Thread(target=lambda: answers.append(server.post("/generate", REQUEST | {"rid": "thin"})), daemon=True)
    thread.start()
    wait_for(lambda: server.load()["queues"]["paused"] == 1, "the request")
    server.client.abort("thin")
    thread.join(10)
    server.client.continue_generation()
    status, answer = answers[0]
    assert status == 200
    keys("meta_info.thin", answer["meta_info"])
    keys("finish.abort.thin", answer["meta_info"]["finish_reason"])


def test_a_batch_numbers_its_answers(server: Server) -> None:
    answers = server.post("/generate", REQUEST | {"input_ids": [[5], [6]]})[1]
    assert [sorted(set(a) - set(GOLDEN["generate"])) for a in answers] == [["index"], ["index"]]


def test_info(server: Server) -> None:
    keys("model_info", server.get("/model_info"))
    assert server.get("/get_model_info") == server.get("/model_info")
    assert {"version", "dtype", "context_length", "max_total_tokens", "weight_version"} <= set(server.get("/server_info"))
    keys("models.data", server.get("/v1/models")["data"][0])


def test_loads(server: Server) -> None:
    loads = server.get("/v1/loads")
    keys("loads", loads)
    keys("loads.memory", loads["loads"][0]["memory"])
    keys("loads.queues", loads["loads"][0]["queues"])


def test_control(server: Server) -> None:
    keys("pause", server.post("/pause_generation", {"mode": "retract"})[1])
    assert server.call("GET", "/ready")[0] == 503
    assert server.call("GET", "/health")[0] == 200
    keys("pause", server.post("/continue_generation")[1])
    assert server.call("GET", "/ready") == (200, None)
    keys("begin", server.post("/begin_weight_update")[1])
    keys("begin", server.post("/end_weight_update")[1])
    assert server.post("/abort_request", {"rid": ""}) == (200, None)
    checker = server.post("/weights_checker", {"action": "checksum"})[1]
    keys("weights_checker", checker)
    assert sorted(checker["ranks"][0]) == ["checksums", "parallelism_info", "tied"]  # `tied` is ours
    assert all(len(digest) == 16 for digest in checker["ranks"][0]["checksums"].values())


def test_generate_also_takes_put(server: Server) -> None:
    assert server.call("PUT", "/generate", REQUEST)[0] == 200


def test_held_requests_are_counted_as_paused(server: Server) -> None:
    server.client.pause("retract")
    flight = InFlight(server, [[5]], SamplingParams(max_new_tokens=1), {})
    wait_for(lambda: server.load()["queues"] == {"waiting": 0, "grammar": 0, "paused": 1, "retracted": 0}, "the request")
    server.client.continue_generation()
    flight.results()
