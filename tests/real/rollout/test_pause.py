"""The pause table: what each mode does to requests that run, and what is refused meanwhile."""

from __future__ import annotations

import threading
import time

import pytest
from rollout_server import InFlight, Server, wait_for, with_seed

from rlflow.engines.rollout import EngineRefused, SamplingParams

PROMPTS = [[5, 9, 14, 30], [7] * 11, [40, 3]]
LONG = SamplingParams(max_new_tokens=600, ignore_eos=True)


def undisturbed(server: Server) -> list[list[int]]:
    """What the same requests give when nothing pauses them."""
    return [server.client.generate(p, with_seed(LONG, 100 + i)).output_ids for i, p in enumerate(PROMPTS)]


def test_retract_empties_the_slots_and_loses_no_token(server: Server) -> None:
    flight = server.start_generations(PROMPTS, LONG)
    server.client.pause("retract")
    load = server.load()
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["queues"]["retracted"]) == (0, 3, 3)
    assert not server.client.ready()
    server.client.continue_generation()
    answers = flight.results()
    assert [a.num_retractions for a in answers] == [1, 1, 1]
    assert [a.output_ids for a in answers] == undisturbed(server)


def test_in_place_freezes_the_rows(server: Server) -> None:
    flight = server.start_generations(PROMPTS, LONG)
    server.client.pause("in_place")
    before = server.load()
    time.sleep(0.1)
    after = server.load()
    assert before["num_running_reqs"] == after["num_running_reqs"] == 3
    assert before["num_used_tokens"] == after["num_used_tokens"]
    server.client.continue_generation()
    answers = flight.results()
    assert [a.num_retractions for a in answers] == [0, 0, 0]
    assert [a.output_ids for a in answers] == undisturbed(server)


def test_abort_ends_them_with_what_they_have(server: Server) -> None:
    flight = server.start_generations(PROMPTS, LONG)
    server.client.pause("abort")
    answers = flight.results()
    assert [a.finish_reason.type for a in answers] == ["abort"] * 3
    assert all(0 < len(a.output_ids) < 600 for a in answers)
    assert server.load()["num_running_reqs"] == 0


def test_the_default_mode_is_abort(server: Server) -> None:
    flight = server.start_generations(PROMPTS, LONG)
    assert server.post("/pause_generation") == (200, {"message": "Generation paused successfully.", "status": "ok"})
    assert [a.finish_reason.type for a in flight.results()] == ["abort"] * 3


def test_pausing_twice_is_pausing_once(server: Server) -> None:
    flight = server.start_generations(PROMPTS, LONG)
    server.client.pause("retract")
    server.client.pause("retract")
    server.client.continue_generation()
    assert [a.num_retractions for a in flight.results()] == [1, 1, 1]


def test_an_unknown_mode_is_refused(server: Server) -> None:
    status, answer = server.post("/pause_generation", {"mode": "bogus"})
    assert status == 400
    assert "bogus" in answer["error"]["message"]
    assert server.client.ready()


def test_new_requests_wait_for_continue(server: Server) -> None:
    server.client.pause("retract")
    flight = InFlight(server, [[5, 6, 7]], SamplingParams(max_new_tokens=3), {})
    wait_for(lambda: server.load()["queues"]["paused"] == 1, "the request to be held")
    server.client.abort(abort_all=True)  # leaves requests alone that a pause holds back
    time.sleep(0.1)
    assert not flight.done
    server.client.continue_generation()
    assert flight.results()[0].finish_reason.type in ("length", "stop")


def test_a_held_request_can_be_aborted_by_its_id(server: Server) -> None:
    server.client.pause("retract")
    flight = InFlight(server, [[5, 6, 7]], SamplingParams(max_new_tokens=3), {"rids": ["held"]})
    wait_for(lambda: server.load()["queues"]["paused"] == 1, "the request to be held")
    server.client.abort("held")
    assert flight.results()[0].output_ids == []


def test_a_retracted_request_can_be_aborted_in_the_pause(server: Server) -> None:
    flight = server.start_generations(PROMPTS[:1], LONG, rids=["r"])
    server.client.pause("retract")
    server.client.abort("r")
    answer = flight.results()[0]
    assert answer.finish_reason.message == "Abort in waiting queue"
    assert len(answer.output_ids) == len(answer.log_probs) > 0


@pytest.mark.parametrize(("mode", "flushes"), [("retract", True), ("abort", True), ("in_place", False)])
def test_flush_in_a_pause(server: Server, mode: str, flushes: bool) -> None:
    server.start_generations(PROMPTS, LONG)
    server.client.pause(mode)  # type: ignore[arg-type]
    assert server.post("/flush_cache")[0] == (200 if flushes else 400)


def test_flush_is_refused_while_requests_run_and_waits_if_asked(server: Server) -> None:
    flight = server.start_generations(PROMPTS, SamplingParams(max_new_tokens=400, ignore_eos=True))
    assert server.post("/flush_cache") == (400, "Flush cache failed.\n")
    assert server.post("/flush_cache?timeout=20")[0] == 200
    assert all(len(a.output_ids) == 400 for a in flight.results())


def test_pause_does_not_wait_behind_many_generations(server: Server) -> None:
    """More generations than pooled connections, all held: the control calls still go through."""
    server.client.pause("retract")
    flight = InFlight(server, [[5, 6]] * 20, SamplingParams(max_new_tokens=2), {})  # the client keeps 8 connections
    wait_for(lambda: server.load()["queues"]["paused"] == 20, "the requests to be held")
    done = threading.Event()
    threading.Thread(target=lambda: (server.client.continue_generation(), done.set()), daemon=True).start()
    assert done.wait(5)
    assert len(flight.results()) == 20


def test_release_is_refused_while_requests_run(server: Server) -> None:
    server.start_generations(PROMPTS, LONG)
    with pytest.raises(EngineRefused, match="3 requests are running"):
        server.client.release(["kv_cache"])
    server.client.pause("in_place")
    with pytest.raises(EngineRefused, match="3 requests are running"):
        server.client.release(["kv_cache"])
